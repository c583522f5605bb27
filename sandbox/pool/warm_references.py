"""Which problem a free device should take next: one whose reference processes it has, if that keeps nobody waiting."""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Protocol

KEPT = 4
"""Problems whose reference children a worker keeps; the one that was asked for longest ago is ended first."""
LOOK = 64
"""Problems that are looked at for one decision, those that began to wait first; so thousands cost no more."""
PATIENCE_S = 120.0
"""What has waited longer goes first, on whichever device."""


class WaitingWork(Protocol):
    """A piece of work that waits for a device."""

    since: float
    """When it began to wait, in the loop's seconds."""


class Warmth:
    """What is known of the reference processes that each device's worker keeps: it keeps the last few problems'."""

    def __init__(self) -> None:
        self._kept: dict[str, OrderedDict[str, None]] = {}
        self._holders: dict[str, dict[str, None]] = {}
        """The devices that have a problem, in the order in which they took it up."""

    def use(self, device: str, problem: str) -> bool:
        """The device takes up a problem; whether it has its references already."""
        kept = self._kept.setdefault(device, OrderedDict())
        warm = problem in kept
        kept[problem] = None
        kept.move_to_end(problem)
        self._holders.setdefault(problem, {})[device] = None
        if len(kept) > KEPT:
            self._drop(device, kept.popitem(last=False)[0])
        return warm

    def forget(self, device: str) -> None:
        """The device's worker was lost."""
        for problem in self._kept.pop(device, ()):
            self._drop(device, problem)

    def _drop(self, device: str, problem: str) -> None:
        del self._holders[problem][device]
        if not self._holders[problem]:
            del self._holders[problem]

    def device_for(self, problem: str, idle: Mapping[str, object]) -> str:
        """Of several idle devices one that has the problem, or the one that has been idle for longest."""
        return next((device for device in self._holders.get(problem, ()) if device in idle), next(iter(idle)))

    def problem_for(self, device: str, waiting: Mapping[str, Sequence[WaitingWork]], now: float) -> str:
        """What a device should take: what has waited too long, then what is warm here, then what fewest devices have.

        `waiting` holds problems in the order in which they began to wait.
        """
        seen = list(islice(waiting, LOOK))
        oldest = min(seen, key=lambda problem: waiting[problem][0].since)
        if now - waiting[oldest][0].since > PATIENCE_S:
            return oldest
        warm = [problem for problem in self._kept.get(device, ()) if problem in waiting]
        if warm:
            return min(warm, key=lambda problem: waiting[problem][0].since)
        return max(seen, key=lambda problem: len(waiting[problem]) / (1 + len(self._holders.get(problem, ()))))
