"""Providers: what answers a request. Each is one file in `kinds` that keeps `provider.Provider`, whatever stands behind it."""
