"""Providers: what answers a request. Each is one file that keeps `protocol.Provider`, whatever stands behind it."""
