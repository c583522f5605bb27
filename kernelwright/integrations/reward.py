"""The reward of a verdict for training: one pure function, made so that nothing but a fast kernel pays.

    failed at any stage                                      0, flagged where that was in the timing
    passed, and something about it must be explained first   0, flagged
    passed, and it says nothing of the candidate             None, flagged
    passed, s < 1                                            right * s
    passed, s >= 1                                           right + (1 - right) * ln(s) / ln(S), at most 1

s is the lower end of the speedup's interval against the fastest baseline, at most the speedup at the roofline; S is
that speedup, `full_speedup` where no roofline is known. So luck and noise do not pay, and nothing is gained beyond the
roofline. A kernel that is slower than the baseline is worth less the slower it is.
"""

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from pydantic import Field

from kernelwright.problems.problem import Record
from kernelwright.prompts.rendering import trimmed
from kernelwright.sandbox.verdict.report import DOUBTS, counted_speedup, measurement_of, timing_lines
from kernelwright.sandbox.verdict.verdicts import JAIL_OFF, Look

LEAST_FULL_SPEEDUP = 2.0
"""S is not below this: else a hundredth more would be worth a lot where the baseline is close to the roofline."""
Flag = Literal[
    "unjudged", "weak_problem", "undefended", "failed_when_timed", "impossible", "no_own_kernel", "library",
    "hidden_build", "below_floor", "too_noisy", "unconfirmed",
]  # fmt: skip
"""With None: `unjudged` (no verdict: the fault of the machine or the problem), `weak_problem` (it accepts trivial
answers), `undefended` (defences of the judge, or the whole jail, were off). With 0: `failed_when_timed` (right until it
was timed, or then faster than any program can be), `impossible` (the same by a record's own floor), `no_own_kernel`,
`library` (of `paid`), `hidden_build` (a kernel could not be built and it went on without). Else: `below_floor` (with
fewer operations than the reference, or by a mistake: read it), `too_noisy`, `unconfirmed` (a speedup above 1 earns
nothing)."""
Paid = Literal["custom", "mixed", "all"]


class RewardTerms(Record):
    """The terms of payment."""

    right: float = Field(default=0.3, ge=0, lt=1)
    """For a correct kernel that is exactly as fast as the fastest baseline."""
    full_speedup: float = Field(default=10, ge=LEAST_FULL_SPEEDUP)
    """The speedup that earns 1 where no roofline is known."""
    paid: Paid = "custom"
    """By its label of authenticity: `custom` pays for kernels that call no library; `mixed` also for those beside
    library calls, so for a kernel for show too; `all` for every right answer, also the reference in torch.compile."""


USUAL = RewardTerms()


class Reward(Record):
    """The reward of a verdict, and its flags."""

    value: float | None = Field(default=None, ge=0, le=1)
    """None: there is nothing to learn from this sample. It is not the candidate's fault, so it must not become 0."""
    flags: tuple[Flag, ...] = ()
    why: str
    """A few words for a log."""

    @property
    def is_quarantined(self) -> bool:
        """True for a kernel that looked right and is not paid: somebody should read it."""
        return self.value == 0 and bool(self.flags)


def reward(verdict: Mapping[str, Any] | None, terms: RewardTerms = USUAL) -> Reward:
    """Compute the reward of the object of `kernelwright judge --json`; None for a missing verdict."""
    if verdict is None:
        return Reward(flags=("unjudged",), why="there is no verdict")
    if verdict["outcome"] != "passed":
        stage = verdict["stage"]
        return Reward(value=0, flags=("failed_when_timed",) if stage == "time" else (), why=f"failed at {stage}")
    useless: list[Flag] = []
    if (verdict.get("problem_status") or {}).get("status") == "weak":
        useless.append("weak_problem")
    if verdict.get("without") or JAIL_OFF in verdict.get("jail", ()):
        useless.append("undefended")
    if useless:
        return Reward(flags=tuple(useless), why="the verdict says nothing of the candidate")
    if suspect := tuple(_suspect(verdict, terms)):
        return Reward(value=0, flags=suspect, why="right, and not paid")
    flags: tuple[Flag, ...] = ("below_floor",) if _is_below(verdict, "floor_ms") else ()
    allowed = _allowed(verdict)
    speedup = min(verdict["speedup_low"], math.inf if allowed is None else max(1.0, allowed))
    if (doubt := verdict["comparison"]) in DOUBTS:
        flags, speedup = (*flags, doubt), counted_speedup(speedup, doubt)
    if speedup < 1:
        return Reward(value=terms.right * speedup, flags=flags, why=f"right, {speedup:.3g} x")
    full = terms.full_speedup if allowed is None else max(LEAST_FULL_SPEEDUP, allowed)
    value = terms.right + (1 - terms.right) * min(1.0, math.log(speedup) / math.log(full))
    return Reward(value=value, flags=flags, why=f"right, {speedup:.3g} x of {full:.3g} x")


def _suspect(verdict: Mapping[str, Any], terms: RewardTerms) -> Iterator[Flag]:
    if _is_below(verdict, "impossible_below_ms"):
        yield "impossible"
    label = verdict["authenticity"]["label"]
    if terms.paid != "all" and label not in ("custom", "mixed"):
        yield "no_own_kernel"
    if terms.paid == "custom" and label == "mixed":
        yield "library"
    if terms.paid != "all" and verdict.get("hidden_builds"):
        yield "hidden_build"


def _allowed(verdict: Mapping[str, Any]) -> float | None:
    """Return the speedup at the roofline against the baseline that counts; None where no roofline is known."""
    floor_ms = verdict.get("floor_ms")
    if not floor_ms:
        return None
    baselines: Mapping[str, float] = verdict["baselines_ms"]
    counted = baselines.get(verdict.get("against") or "", min(baselines.values()))
    return float(counted / floor_ms)


def _is_below(verdict: Mapping[str, Any], bound: str) -> bool:
    least = verdict.get(bound)
    return least is not None and verdict["candidate_ms"] < least


LONGEST = 6000


def feedback(report: Mapping[str, Any], earned: Reward, longest: int = LONGEST) -> str:
    """Tell a model the deciding fact first, then its circumstances and everything odd."""
    if report["outcome"] == "failed":
        said = f"failed at {report['stage']}: {report['reason']}"
        said += f"\n{report['log']}" if report["log"] else ""
    else:
        look = Look.model_validate_json(json.dumps(report["look"])) if report["look"] else None
        said = f"passed\n{timing_lines(measurement_of(dict(report)), look)}"
    authenticity = report["authenticity"]
    lines = [f"kernel: {authenticity['label']} ({'; '.join(authenticity['evidence'])})"]
    lines += [f"a build failed and was hidden: {line}" for line in report["hidden_builds"]]
    lines += [f"flagged: {', '.join(earned.flags)}"] if earned.flags else []
    odd = "\n".join(lines)[: longest // 2]
    return f"{trimmed(said, longest - len(odd))}\n{odd}".rstrip()
