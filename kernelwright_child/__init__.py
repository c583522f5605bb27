"""The programs that run in the jail: the supervisor, the builder, the candidate's worker and the reference worker.

Nothing here decides anything. A candidate shares a process with this code and may change all of it; the judge is built
so that this does not help.
"""
