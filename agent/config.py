"""`SearchConfig`: everything that steers a search and is not the problem."""

from typing import Literal

from pydantic import Field

from kernelwright.problems.record.base import Record
from kernelwright.prompts import Target

Adviser = Literal["plan", "critique", "reflect"]


class Budget(Record):
    """What may be spent beside attempts; None sets no limit. Checked before each decision, so it may be overrun by
    what is in flight then.
    """

    tokens: int | None = Field(default=None, ge=1)
    """Input and output tokens. A limit is refused where a reply's usage is unknown: it could not be kept."""
    usd: float | None = Field(default=None, gt=0)
    """By the provider's own statement or the price table; refused, too, where a price is unknown."""
    judge_s: float | None = Field(default=None, gt=0)
    """Seconds of judging, all stages, as the verdicts say."""
    wall_s: float | None = Field(default=None, gt=0)
    """Wall seconds, those between two processes of one run left out."""


class SearchConfig(Record):
    """Written whole into the header of a run, so that a resumed search does what the first one would have done."""

    target: Target = "cpp"
    model: str
    strategy: str = "refine"
    """The name of a strategy, or `path/to/file.py:function`."""
    attempts: int = Field(default=10, ge=1)
    """The budget, for each problem: asks for a candidate. Tuning and advice do not count."""
    budget: Budget = Budget()
    """Further limits for each problem."""
    batch: Budget = Budget()
    """Further limits for all problems of the run together."""
    share: bool = True
    """Whether attempts that a problem leaves unspent go to those where most is to be gained."""
    drafts: int = Field(default=3, ge=1)
    """First versions from the reference, each with an idea of its own."""
    repairs: int = Field(default=2, ge=0)
    """How often in a row a failure is repaired before it is given up, where repairs work out about half of the time."""
    patience: int = Field(default=20, ge=1)
    """Improvements without a gain before the search ends."""
    gain: float = Field(default=0.02, ge=0)
    """The least share by which an improvement must beat the best so far to count as one."""
    runner_up: int = Field(default=4, ge=0)
    """Every so many improvements one starts from the best attempt of another idea family; 0 for never."""
    near_floor: float = Field(default=0.9, gt=0, le=1)
    """The search ends once the floor is this share of the best time, where the floor is known."""
    confirm: int = Field(default=3, ge=0)
    """So many of the fastest are judged afresh before the best is named; 0 for none."""
    tune: int = Field(default=8, ge=0)
    """Variants of declared constants that are judged for each problem; 0 for none. They cost no tokens."""
    models: tuple[str, ...] = ()
    """Further models, each stronger and dearer than the one before it; `model` is the first."""
    choice: Literal["escalate", "bandit"] = "escalate"
    """`escalate`: the next model after `stall` attempts without a gain. `bandit`: the best gain a USD, by trial."""
    stall: int = Field(default=6, ge=1)
    advisers: tuple[Adviser, ...] = ()
    """Asks for words beside those for candidates; off by default."""
    slots: int = Field(default=1, ge=1)
    """Attempts in flight at once for a problem. Above 1 a fresh run repeats another only in `lockstep`."""
    lockstep: bool = False
    """Decide only when nothing is in flight: slower, and the same run whatever order the answers come in."""
    problems_at_once: int = Field(default=1, ge=1)
    without: tuple[str, ...] = ()
    history_tokens: int = Field(default=2000, ge=0)
    """The table of earlier attempts is cut to about this, the least telling rows first."""
    measure: bool = True
    """Whether the reference is judged once before the first ask, so that prompts tell what PyTorch takes."""
    prices: str | None = None
    """Path of a price table; None where what the provider says is all that is known."""
    learn: bool = True
    """Whether ideas are tried in the order of their wins at other problems of the run; else in the bank's own."""
    learn_from: tuple[str, ...] = ()
    """Folders of earlier runs whose record of ideas is used as well."""
    seed: int = 0
    temperature: float | None = None
    """None leaves it to the provider."""
    max_tokens: int | None = Field(default=None, ge=1)
    provider_retries: int = Field(default=2, ge=0)
    """How often a passing failure of the provider is tried again, beyond the retries of its own client."""
    retry_delay_s: float = Field(default=10.0, ge=0)
    """Wait before the first of these; doubled for each further one."""
