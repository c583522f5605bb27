"""Providers: what answers a request. One that ships is a file in `kinds`; each keeps `provider.Provider`."""
