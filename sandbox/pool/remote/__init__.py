"""The pool of another process: a service that is asked over HTTP."""
