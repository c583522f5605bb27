"""Values for a candidate's calls that no call has seen, drawn by references that are not timed on them."""

import itertools
import random
import secrets
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import NamedTuple

from kernelwright.sandbox.calls.reference import ReferenceSession
from kernelwright.sandbox.correctness.families import DRAWN, schedule, vary
from kernelwright.sandbox.tensors import Values
from kernelwright.sandbox.timing.baselines import Baselines
from kernelwright.sandbox.verdict.settings import Settings


class Source(NamedTuple):
    """Who draws values, and on which core of the processor."""

    session: ReferenceSession
    core: int


class FreshValues:
    """For one candidate: its families of values in turn, and values of them, drawn ahead where nothing is timed.

    Each process draws one after the other: whoever has had something drawn ahead takes it before asking for more.
    """

    def __init__(self, baselines: Baselines, settings: Settings, beside: ThreadPoolExecutor) -> None:
        self._baselines, self._settings, self._beside = baselines, settings, beside
        families = baselines.domain.families if settings.varies_inputs else ()
        self._families = schedule(random.SystemRandom(), families)
        self._only: Values | None = None
        """Where values are not to be fresh: those of the first call."""
        self._ahead: deque[tuple[str, Future[Values]]] = deque()
        """Families and values of the pairs to come, the next one first."""
        self._warming: Future[Values] | None = None

    def of(self, number: int, family: str = DRAWN) -> Values:
        """Of this family, for worker pair `number`; drawn now."""
        return self.by(self._baselines.sources(number)[0], family)

    def by(self, source: ReferenceSession, family: str = DRAWN, cores: Sequence[int] = ()) -> Values:
        if "fresh_values" in self._settings.without:
            self._only = self._only or source.draw()
            return self._only
        values = vary(source.draw(cores), family, in_place=True)
        return values._replace(seed=secrets.randbits(62)) if self._baselines.is_seeded else values

    def draw(self, number: int) -> tuple[str, Values]:
        """The family whose turn it is, of those that the problem is judged on, and values of it; drawn now."""
        family = self._family()
        return family, self.of(number, family)

    def next(self, number: int, wanted: int) -> tuple[str, Values]:
        """The same, where so many such are still wanted for this worker pair; those drawn ahead, where that can be."""
        self.draw_ahead(number, wanted)
        if not self._ahead:
            return self.draw(number)
        family, values = self._ahead.popleft()
        return family, values.result()

    def draw_ahead(self, number: int, wanted: int) -> None:
        """Have the next ones for this worker pair drawn by other threads, unless there are some, or who draws is busy
        with what is right: as many, but no more than are wanted, as there are processes that may draw.
        """
        sources = self._sources(number)
        if self._ahead or sources[0].session is self._baselines.eager(number):
            return
        for source in sources[:wanted]:
            family = self._family()
            self._ahead.append((family, self._drawing(family, source)))

    def warm(self, number: int) -> None:
        """Have those for the untimed calls of this worker pair, which comes next, drawn by another thread.

        Only where so many processes live that who draws them has no part in what is compared meanwhile.
        """
        if self._baselines.draws_twice:
            self._warming = self._drawing(DRAWN, self._sources(number)[0])

    def warmed(self, number: int) -> Values:
        """Those for the untimed calls of this worker pair."""
        warming, self._warming = self._warming, None
        return warming.result() if warming else self.of(number)

    def in_turn(self, number: int, families: Sequence[str]) -> Iterator[tuple[str, Values]]:
        """Each with values of it, when nothing is timed any more. Where more than one process may draw, the next ones
        are drawn meanwhile.
        """
        if self._warming is not None:
            self._warming.result()
        sources = self._sources(number)
        if len(sources) == 1:
            yield from ((family, self.of(number, family)) for family in families)
            return
        drawn = (
            (family, self._drawing(family, source))
            for family, source in zip(families, itertools.cycle(sources), strict=False)
        )
        ahead = deque(itertools.islice(drawn, len(sources)))
        while ahead:
            family, drawing = ahead.popleft()
            values = drawing.result()
            ahead.extend(itertools.islice(drawn, 1))
            yield family, values

    def _sources(self, number: int) -> list[Source]:
        """Those that may draw at once, each on a core of its own."""
        cores = self._settings.cores
        return [Source(*each) for each in zip(self._baselines.sources(number), (cores[0], cores[-1]), strict=False)]

    def _family(self) -> str:
        return next(family for family in self._families if family not in self._baselines.domain.outside)

    def _drawing(self, family: str, source: Source) -> Future[Values]:
        return self._beside.submit(self.by, source.session, family, [source.core])


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
