"""A judge that stays warm: jobs over HTTP, kept on disk until they are judged, for one host and all its devices.

The process that listens runs and parses nothing of what clients send: sources are parsed in a process beside it
(`text_process.py`) and judged by the pool's workers, whose children are jailed. `job_store.py` has the records and
keeps them, `job_queue.py` hands them to the devices, `application.py` answers, `server.py` listens.
"""
