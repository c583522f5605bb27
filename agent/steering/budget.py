"""What a search has spent, and whether it may go on. Pure: all of it is read from the view."""

from collections.abc import Iterable
from typing import TypeVar

from kernelwright.agent.log.config import Budget, SearchConfig
from kernelwright.agent.log.records import Attempt
from kernelwright.agent.log.view import View
from kernelwright.agent.steering.prices import Prices
from kernelwright.problems.record.base import Record
from kernelwright.sandbox.verdict.in_words import floor_ms


class Spent(Record):
    """What attempts have cost so far. None is unknown: a provider told no usage, or there is no price."""

    tokens: int | None
    usd: float | None
    judge_s: float
    wall_s: float

    def __add__(self, other: "Spent") -> "Spent":
        """Of two searches that ran one after the other."""
        return Spent(
            tokens=_sum((self.tokens, other.tokens)),
            usd=_sum((self.usd, other.usd)),
            judge_s=self.judge_s + other.judge_s,
            wall_s=self.wall_s + other.wall_s,
        )


N = TypeVar("N", int, float)
NOTHING = Spent(tokens=0, usd=0.0, judge_s=0.0, wall_s=0.0)


def spent(view: View, prices: Prices) -> Spent:
    """What the search for one problem has cost."""
    return Spent(
        tokens=_sum(tokens_of(attempt) for attempt in view.attempts),
        usd=_sum(usd_of(attempt, prices) for attempt in view.attempts),
        judge_s=_judge_s(view),
        wall_s=view.wall_s,
    )


def tokens_of(attempt: Attempt) -> int | None:
    """Input and output tokens of all replies to an attempt; 0 before one came, None where a provider told none."""
    counts = [(reply.usage.input_tokens, reply.usage.output_tokens) for reply in attempt.replies]
    return _sum(count for pair in counts for count in pair)


def usd_of(attempt: Attempt, prices: Prices) -> float | None:
    """What all replies to an attempt cost; 0 before one came, None where it is unknown."""
    return _sum((prices.usd(reply, attempt.ask.model) for reply in attempt.replies), start=0.0)


def exceeded(budget: Budget, costs: Spent, whose: str = "") -> str | None:
    """Why the budget allows nothing more, in a few words; None where it does. `whose` is put behind `budget`."""
    for name, words in (("tokens", "tokens"), ("usd", "USD"), ("judge_s", "s of judging"), ("wall_s", "s")):
        limit, used = getattr(budget, name), getattr(costs, name)
        if limit is None:
            continue
        if used is None:
            return (
                f"a budget{whose} in {words} is set and what was spent is unknown: the provider told no usage or price"
            )
        if used >= limit:
            return f"the budget{whose} of {limit:g} {words} is used up"
    return None


def out_of_attempts(view: View, config: SearchConfig) -> str | None:
    """Why no further attempt may be opened; None where one may."""
    allowed = config.attempts + view.granted
    return f"the budget of {allowed} attempts is used up" if view.spent >= allowed else None


def times_the_floor(view: View, share: float) -> float | None:
    """The best time over the floor; None where one of them is unknown, or the floor is none.

    A floor counts what the reference's operators ask for. A best time below `share` of it leaves out some of that (the
    other half of a triangle), and then the floor tells nothing of the room that is left.
    """
    best = view.best
    floor = floor_ms(best.ruling) if best else None
    if best is None or best.candidate_ms is None or floor is None or best.candidate_ms < share * floor:
        return None
    return best.candidate_ms / floor


def near_floor(view: View, share: float) -> str | None:
    """Why there is no room left: the floor is `share` of the best time, or more; None where there is, or who knows."""
    times, best = times_the_floor(view, share), view.best
    if times is None or best is None or best.candidate_ms is None or share * times > 1:
        return None
    return f"the best takes {best.candidate_ms:.3g} ms, and the floor is {best.candidate_ms / times:.3g} ms"


def _judge_s(view: View) -> float:
    """Seconds of all verdicts: on PyTorch itself, and both of each attempt where they are its own."""
    verdicts = [view.measured.verdict if view.measured else None]
    verdicts += [one for own in view.attempts if own.same_as is None for one in (own.verdict, own.confirmed)]
    return sum(sum(verdict.evidence.seconds.values()) for verdict in verdicts if verdict is not None)


def _sum(parts: Iterable[N | None], start: N = 0) -> N | None:
    """The sum, or None where a part is unknown."""
    total = start
    for part in parts:
        if part is None:
            return None
        total += part
    return total
