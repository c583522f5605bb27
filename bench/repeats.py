"""The same candidates judged again and again with fresh seeds: does each get the same outcome every time?

`python -m bench repeats`: honest candidates, recorded answers (in CUDA where there is a device, else in C++) and wrong
results. Every round has judges of its own, so inputs and weights are others. `KERNELWRIGHT_REPEATS` is the number of
rounds (20), `KERNELWRIGHT_BENCH=honest,recorded,wrong` picks kinds of candidates. Twenty rounds of all take more than
an hour on two cores. A busy machine does no harm: what is counted is the outcome, no time.
"""

import os
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Literal, NamedTuple

from bench.chosen import chosen
from bench.recorded import recorded_source
from kernelwright.agent.providers.recorded import read_session, recorded_targets
from kernelwright.evals.runs import default_size
from kernelwright.problems import Problem, catalog_names, load_problem
from kernelwright.sandbox.jail.zygote import become_a_judge
from kernelwright.sandbox.judge.judging import Judge
from kernelwright.sandbox.verdict.settings import Settings
from kernelwright.sandbox.verdict.verdicts import Candidate, Failed, Verdict
from kernelwright_child import driver
from tests.honest.test_honest import HONEST
from tests.hostile.cheats.problems import CORPUS, posed
from tests.hostile.cheats.wrong_results import WRONG_RESULTS

ROUNDS = 20
PATIENT = CORPUS.model_copy(update={"call_timeout_s": 60})
WIDTH = 70


class Asked(NamedTuple):
    """One candidate, with what it is judged on."""

    name: str
    problem: Problem
    settings: Settings
    candidate: Candidate


class Outcomes(NamedTuple):
    """What was said of one candidate in all rounds."""

    name: str
    counts: Counter[str]
    """By outcome: `passed`, or the stage of a failure."""
    reasons: dict[str, str]
    """The last for each kind of failure."""

    @property
    def repeats(self) -> bool:
        """Whether it was the same every time."""
        return len(self.counts) == 1

    def __str__(self) -> str:
        said = ", ".join(f"{count} {outcome}" for outcome, count in self.counts.most_common())
        why = "" if self.repeats else "".join(f"\n      {reason}" for reason in self.reasons.values())
        return f"  {self.name[:WIDTH]:{WIDTH}}  {said}{'' if self.repeats else '   DIFFERENT'}{why}"


class Repeats(NamedTuple):
    """All of them."""

    candidates: tuple[Outcomes, ...]
    rounds: int

    @property
    def holds(self) -> bool:
        """Whether no candidate got two outcomes."""
        return all(one.repeats for one in self.candidates)

    def __str__(self) -> str:
        alike = sum(one.repeats for one in self.candidates)
        total = (
            f"  {alike} of {len(self.candidates)} candidates got one outcome in {self.rounds} rounds (promised: all)"
        )
        return "\n".join([*map(str, self.candidates), total])


def run() -> Repeats:
    """Round after round, problem by problem."""
    become_a_judge()
    rounds = int(os.environ.get("KERNELWRIGHT_REPEATS", ROUNDS))
    kinds = {"honest": _honest, "recorded": _recorded, "wrong": _wrong}
    asked = [one for kind in chosen(kinds) for one in kinds[kind]()]
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    reasons: dict[str, dict[str, str]] = defaultdict(dict)
    for number in range(1, rounds + 1):
        for name, verdict in _round(asked):
            outcome = f"failed at {verdict.stage}" if isinstance(verdict, Failed) else "passed"
            counts[name][outcome] += 1
            if isinstance(verdict, Failed):
                reasons[name][outcome] = verdict.reason
        differing = [name for name, said in counts.items() if len(said) > 1]
        print(f"  round {number} of {rounds}: {', '.join(differing) or 'no outcome differs'}", flush=True)
    return Repeats(tuple(Outcomes(name, said, reasons[name]) for name, said in counts.items()), rounds)


def _round(asked: list[Asked]) -> Iterator[tuple[str, Verdict]]:
    """Each candidate once, those of one problem by one judge."""
    together: dict[tuple[str, Settings], list[Asked]] = defaultdict(list)
    for one in asked:
        together[one.problem.digest, one.settings].append(one)
    for candidates in together.values():
        with Judge(candidates[0].problem, candidates[0].settings) as judge:
            for one in candidates:
                yield one.name, judge.judge(one.candidate)


def _honest() -> Iterator[Asked]:
    for name, honest in HONEST.items():
        yield Asked(name, posed(honest.problem).problem, PATIENT, honest.candidate)


def _wrong() -> Iterator[Asked]:
    for cheat in WRONG_RESULTS:
        yield Asked(f"{cheat.trick} ({cheat.problem})", posed(cheat.problem).problem, PATIENT, cheat.candidate)


def _recorded() -> Iterator[Asked]:
    target: Literal["cpp", "cuda"] = "cuda" if driver.device_count() else "cpp"
    for name in catalog_names():
        if target not in recorded_targets(name):
            continue
        problem, settings = (
            load_problem(name, default_size(name, target)),
            Settings(device="cuda" if target == "cuda" else "cpu"),
        )
        for index, entry in enumerate(read_session(name, target).entries):
            candidate = Candidate(source=recorded_source(name, target, index), language=target)
            yield Asked(f"{name}/{target}/{entry.file}", problem, settings, candidate)
