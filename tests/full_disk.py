"""A disk without room, for as long as a block lasts."""

import resource
from contextlib import contextmanager


@contextmanager
def no_room():
    """No file of this process may grow. Within the block alone, since whatever runs the tests writes files too."""
    usual = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, usual[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, usual)
