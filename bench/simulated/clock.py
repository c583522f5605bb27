"""An event loop whose clock jumps: hours of waiting pass in the time that the work between them takes."""

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class _Jumping(selectors.DefaultSelector):
    """Never waits: the time that it was told to wait is added to the clock instead."""

    skipped_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready: list[tuple[selectors.SelectorKey, int]] = super().select(0)
        if not ready and timeout is None:
            raise RuntimeError("nothing is left that could happen")
        if not ready and timeout is not None and timeout > 0:
            self.skipped_s += timeout
        return ready


class SimulatedLoop(asyncio.SelectorEventLoop):
    """Threads and processes are unknown to its clock: use it for code that only sleeps and computes."""

    def __init__(self) -> None:
        self._jumping = _Jumping()
        super().__init__(self._jumping)

    def time(self) -> float:
        """Seconds that were waited for; computing takes none."""
        return self._jumping.skipped_s


def run_simulated(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end on a clock that jumps."""
    with asyncio.Runner(loop_factory=SimulatedLoop) as runner:
        return runner.run(work)
