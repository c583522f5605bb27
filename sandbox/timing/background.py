"""Two things at once where neither is timed: most of what the judge does is to wait for a child."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager


@contextmanager
def in_background(work: Callable[[], object], beside: bool = True) -> Iterator[None]:
    """Have `work` done by another thread during the block, or by this one before it where it can not be `beside`.

    When the block is left it is done, or its error raised; an error of the block comes first.
    """
    if not beside:
        work()
        yield
        return
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(work)
        yield
    future.result()
