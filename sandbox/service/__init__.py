"""A judge that stays warm: jobs over HTTP, kept on disk until they are judged, for one host and all its devices.

The listening process runs and parses nothing that clients send. Sources are parsed in another process (`requests.py`)
and judged by the pool's workers, whose children are jailed.
"""
