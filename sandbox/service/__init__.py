"""A judge that stays warm: jobs over HTTP, kept on disk until they are judged, for one host and all its devices.

A job passes these files in order: `server.py` limits its connection and checks its token, `app.py` has its route,
`requests.py` reads it, `store.py` keeps it, and `queue.py` has it judged.

The listening process runs and parses nothing that clients send. Sources are parsed in another process (`requests.py`)
and judged by the pool's workers, whose children are jailed.
"""
