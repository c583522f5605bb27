"""What root sees and an ordinary user does not: folders that are closed to them."""

import contextlib
import os

NOBODY = 65534


@contextlib.contextmanager
def ordinary_user():
    """Within it this process may what an ordinary user may: root gives its rights up for a while."""
    own = os.geteuid()
    if own == 0:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(own)
