"""What an improvement's prompt should say of the kernel it starts from: three kinds of evidence against each other.

A pair is a problem and a correct kernel for it that leaves 1.3 times or more to the roofline and to a copy. From each
the same improvement is asked for with no profile, with raw counters, and with diagnoses; nothing else differs. Parent
and child are judged one after the other by the same reference processes.

`python -m bench sections choose` fixes the pairs in `results/pairs.toml`, before any answer. `ask TREE OUT` profiles
the parents under ncu and writes a task for each pair and kind; an answer lies next to its task, `NAME.answer.md`.
`judge TREE OUT` judges what is answered; `tell OUT` draws the table. TREE is a checkout of KernelBench.

`gains TREE` tells what the answers after the first correct one were worth, where that left as much: it and the best are
judged one after the other in the same way. `tell` draws what it came to, too.
"""

import json
import math
import statistics
import time
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, Literal, NamedTuple

from bench.measuring import STARTED, Kept, Report, interval_by_problem, is_in_time, of_this_part
from bench.results.again import problem_at
from bench.results.records import Answered, Searched, judgings_in, records_in, rejudged
from kernelwright import prompts
from kernelwright.agent.briefs import SPARED, sheet_for, times_and_roofline
from kernelwright.agent.providers.files import ANSWER, TASK
from kernelwright.agent.replies import Extraction, extract
from kernelwright.agent.steering import room_of
from kernelwright.problems import Problem
from kernelwright.problems.formats.reading import safe_name
from kernelwright.sandbox.authenticity.scan import candidate_of
from kernelwright.sandbox.judge.judging import Judge
from kernelwright.sandbox.storage import write_atomically
from kernelwright.sandbox.verdict.diagnoses import MOST_ROWS, WHAT_LIMITS
from kernelwright.sandbox.verdict.errors import SandboxError
from kernelwright.sandbox.verdict.report import timing_lines
from kernelwright.sandbox.verdict.settings import SCREEN, JudgeSettings
from kernelwright.sandbox.verdict.verdicts import Look, Measurement, Passed, Verdict
from kernelwright_child import driver

Kind = Literal["no profile", "raw counters", "diagnoses"]
KINDS: tuple[Kind, ...] = ("no profile", "raw counters", "diagnoses")
RESULTS = Path(__file__).parent.parent / "results"
FILE = "pairs.toml"
ROOM = 1.3
BEST = "best"
"""The name of the best kernel beside the first correct one."""
COMMANDS = ("choose", "ask", "judge", "tell", "gains")
PROFILING = JudgeSettings(device="cuda", effort="search").model_copy(update=SCREEN | {"profile": True})
"""One worker and no compiled baseline; the effort `screen` itself looks no closer."""
SIDE_BY_SIDE = JudgeSettings(device="cuda", effort="rank", worker_pairs=2, min_pairs=16, baselines=())
"""Only the ratio of child to parent counts, so one baseline serves both."""


class Pair(NamedTuple):
    address: str
    dtype: str
    digest: str
    """sha256 of the parent's source, as 64 hex digits."""

    @property
    def name(self) -> str:
        return safe_name(f"{self.address.replace('/', '-')}-{self.dtype}")


def choose(folder: Path = RESULTS) -> Report:
    """Fix the pairs: of each problem and dtype the best kernel, where it leaves room."""
    lines = []
    for one in _records(folder):
        room = room_of(one.best.attempt.measurement, SPARED) if one.best else None
        if one.best and room is not None and room >= ROOM:
            lines.append(f'"{one.address} {one.dtype}" = "{one.best.digest}" # {room:.2f}')
    (folder / FILE).write_text("# A problem and dtype, and the digest of the parent.\n" + "\n".join(lines) + "\n")
    return Report(f"  {len(lines)} pairs of {len({line.split()[0] for line in lines})} problems")


def _records(folder: Path) -> list[Searched]:
    """Return the records with the verdicts that count."""
    again = judgings_in(folder)
    return [rejudged(one, again)[0] for one in records_in(folder)]


def pairs_of(folder: Path) -> list[Pair]:
    """Read the fixed pairs. Raises `SandboxError` where none are fixed yet."""
    if not (folder / FILE).exists():
        raise SandboxError(f"there is no {folder / FILE}; fix the pairs first: python -m bench sections choose")
    table = tomllib.loads((folder / FILE).read_text(encoding="utf-8"))
    return [Pair(address, dtype, digest) for name, digest in table.items() for address, dtype in [name.split()]]


def _answers(folder: Path) -> dict[str, Answered]:
    """Return every answer by the digest of its source."""
    return {answered.digest: answered for one in _records(folder) for answered in one.attempts if answered.source}


def ask(tree: Path, out: Path, folder: Path = RESULTS) -> Report:
    """Write the tasks of each pair, with the parent's times on record. What is written already is left.

    Those without a profile need no device. For the others a parent is judged under ncu.
    """
    known, pairs, failed = _answers(folder), pairs_of(folder), []
    out.mkdir(parents=True, exist_ok=True)
    for pair in of_this_part(pairs):
        places = {kind: out / f"{pair.name}.{_short(kind)}{TASK}" for kind in KINDS}
        missing = [kind for kind in KINDS if not places[kind].exists()]
        if not missing:
            continue
        problem, parent = problem_at(tree, pair.address, pair.dtype), known[pair.digest]
        source, measured, look = str(parent.source), parent.attempt.measurement, Look()
        assert measured is not None
        if driver.device_count() > 0 and is_in_time():
            try:
                look = _profiled(problem, source)
                print(f"{time.monotonic() - STARTED:4.0f} s {pair.name}", flush=True)
            except SandboxError as error:
                failed.append(f"  {pair.name}: {error}")
        texts = tasks(problem, source, measured, look)
        for kind in missing:
            if kind == "no profile" or look.counters:
                write_atomically(places[kind], texts[kind])
    written = len(list(out.glob(f"*{TASK}")))
    return Report("\n".join([*failed, f"  {written} of {len(KINDS) * len(pairs)} tasks in {out}"]), not failed)


def _profiled(problem: Problem, source: str) -> Look:
    """Look closer at a correct candidate. Raises `SandboxError` where it is none, or ncu reads no counters."""
    with Judge(problem, PROFILING) as judge:
        verdict = judge.judge(candidate_of(source))
    look = verdict.evidence.look or Look()
    if not isinstance(verdict, Passed) or not look.counters:
        raise SandboxError(f"{verdict.outcome}, no counters {look.obstacle}")
    return look


def _short(kind: Kind) -> str:
    return kind.replace(" ", "-")


def tasks(problem: Problem, source: str, measured: Measurement, look: Look) -> dict[Kind, str]:
    """Return the prompt of an improvement of this kernel with each kind of evidence."""
    room, on_device = room_of(measured, SPARED), measured.on_device
    sheet = sheet_for("cuda", on_device.device if on_device else None)
    bare = timing_lines(measured, None).partition(WHAT_LIMITS)[0].rstrip()
    said: dict[Kind, str] = {
        "no profile": bare,
        "raw counters": "\n".join([bare, *raw_lines(look)]),
        "diagnoses": timing_lines(measured, look),
    }
    rendered: dict[Kind, prompts.Prompt] = {}
    for kind, evidence in said.items():
        parent = prompts.Parent(
            number=1, outcome="passed", candidate_ms=measured.candidate_ms, speedup=measured.speedup, source=source,
            evidence=evidence,
        )  # fmt: skip
        brief = prompts.Brief(
            problem=problem, target="cuda", role="improve", device=sheet,
            baselines=times_and_roofline(measured), parent=parent, room=room,
        )  # fmt: skip
        rendered[kind] = prompts.render(brief)
    # Long evidence would leave less room for snippets: every kind has those of the shortest.
    return {kind: _with_evidence(rendered["no profile"], prompt) for kind, prompt in rendered.items()}


def _with_evidence(prompt: prompts.Prompt, other: prompts.Prompt) -> str:
    theirs = next(section for section in other.sections if section.name == "evidence")
    sections = tuple(theirs if section.name == "evidence" else section for section in prompt.sections)
    return prompt.model_copy(update={"sections": sections}).text


def raw_lines(look: Look, most: int = 4) -> Iterator[str]:
    """Write torch's list of kernels, and ncu's counters of the first launches, as they are; so many fit a prompt."""
    yield "kernels of a call, by torch's profiler:"
    for one in look.kernels[:MOST_ROWS]:
        yield f"  {one.name[:100]}: {one.launches} x, {one.ms:.4f} ms in all"
    yield "hardware counters of its launches, by ncu:"
    for launch in look.counters[:most]:
        yield launch.kernel
        yield from (f"  {name}: {value}" for name, value in launch.metrics.items())


def judge(tree: Path, out: Path, folder: Path = RESULTS) -> Report:
    """Judge each answer beside its parent; a row each in `pairs.jsonl`. What is judged already is left."""
    rows, parents = Kept("pairs.jsonl"), _answers(folder)
    known = {(row["pair"], row["kind"]) for row in rows.rows()} if rows.path.exists() else set()
    for pair in of_this_part(pairs_of(folder)):
        answers = {kind: out / f"{pair.name}.{_short(kind)}{ANSWER}" for kind in KINDS}
        new = [kind for kind, path in answers.items() if path.exists() and (pair.name, kind) not in known]
        if not new or not is_in_time():
            continue
        found = {kind: extract(answers[kind].read_text(encoding="utf-8")) for kind in new}
        sources: dict[str, str] = {kind: one.source for kind, one in found.items() if isinstance(one, Extraction)}
        sources["parent"] = str(parents[pair.digest].source)
        try:
            verdicts = side_by_side(problem_at(tree, pair.address, pair.dtype), sources)
            for kind in new:
                rows.add(_row(pair, kind, sources.get(kind), verdicts))
        except SandboxError as error:
            print(f"  {pair.name}: {error}", flush=True)
    return tell(rows.path)


def _row(pair: Pair, kind: str, source: str | None, verdicts: Mapping[str, Verdict]) -> dict[str, object]:
    """Return a row on the verdict `kind` beside the parent's, and print its beginning."""
    child, parent = verdicts.get(kind), verdicts["parent"]
    row: dict[str, object] = {"pair": pair.name, "problem": pair.address, "kind": kind, "digest": pair.digest}
    row["ratio"] = _speedup(child) / _speedup(parent) if _speedup(child) else None
    row["outcome"] = "no candidate" if child is None else child.outcome
    print(f"{time.monotonic() - STARTED:4.0f} s {json.dumps(row)}", flush=True)
    stored = {"verdict": child and child.model_dump(mode="json"), "parent": parent.model_dump(mode="json")}
    return row | {"source": source} | stored


def gains(tree: Path, folder: Path = RESULTS) -> Report:
    """Judge the best kernel beside the first correct one, a row each in `gains.jsonl`; what is judged is left.

    Where both are the same nothing is judged, and the row's ratio is 1.
    """
    rows = Kept("gains.jsonl")
    known = {(row["pair"], row["digest"]) for row in rows.rows()}
    for one in of_this_part(_records(folder)):
        first = next((found for found in one.attempts if found.attempt.measurement), None)
        room = room_of(first.attempt.measurement, SPARED) if first else None
        if not (one.best and first and room and room >= ROOM):
            continue
        pair = Pair(one.address, one.dtype, one.best.digest)
        if (pair.name, pair.digest) in known or not is_in_time():
            continue
        if first.digest == pair.digest:
            rows.add({"pair": pair.name, "problem": pair.address, "kind": BEST, "digest": pair.digest, "ratio": 1.0})
            continue
        sources = {"parent": str(first.source), BEST: str(one.best.source)}
        try:
            rows.add(_row(pair, BEST, sources[BEST], side_by_side(problem_at(tree, *pair[:2]), sources)))
        except SandboxError as error:
            print(f"  {pair.name}: {error}", flush=True)
    return tell_gains(rows.rows())


def tell_gains(rows: Sequence[Mapping[str, Any]]) -> Report:
    """Draw the mean speed of the best over that of the first correct kernel; one that fails here counts as 1."""
    if not rows:
        return Report("  nothing is judged yet")
    logs = [(str(row["problem"]), math.log(row["ratio"] or 1.0)) for row in rows]
    low, high = (math.exp(end) for end in interval_by_problem(logs))
    mean = math.exp(statistics.fmean(value for _, value in logs))
    return Report(f"  the best over the first correct kernel, {len(rows)} kernels: {mean:.3f} [{low:.3f}, {high:.3f}]")


def side_by_side(
    problem: Problem, sources: Mapping[str, str], settings: JudgeSettings = SIDE_BY_SIDE
) -> dict[str, Verdict]:
    """Build the parent and its children at once, then judge one after the other, by the same reference processes.

    Raises `SandboxError` where the parent fails.
    """
    with ExitStack() as stack:
        judge = stack.enter_context(Judge(problem, settings))
        _ = judge.reference  # every build needs its arguments
        builders = stack.enter_context(ThreadPoolExecutor(len(sources)))
        building = [builders.submit(judge.build, candidate_of(source), ahead=False) for source in sources.values()]
        built = [stack.enter_context(closing(one.result())) for one in building]
        found = {name: judge.evaluate(one) for name, one in zip(sources, built, strict=True)}
    if not _speedup(found["parent"]):
        raise SandboxError(f"the parent fails: {found['parent'].model_dump_json()[:300]}")
    return found


def _speedup(verdict: object) -> float:
    return verdict.measurement.speedup if isinstance(verdict, Passed) else 0.0


def tell(path: Path) -> Report:
    """Draw the table: by kind, answers, correct ones, and the mean of the children's speed over their parents'.

    Of the rows of `gains`, their mean.
    """
    if not path.exists():
        return Report(f"  {path} holds nothing yet: no answer was judged")
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    if all(row["kind"] == BEST for row in rows):
        return tell_gains(rows)
    logs = {kind: {row["pair"]: gain(row["ratio"]) for row in rows if row["kind"] == kind} for kind in KINDS}
    problem = {row["pair"]: row["problem"] for row in rows}
    lines = [
        "| evidence | answers | correct | geometric mean of child over parent, losses as 1 | over no profile [95 %] |"
    ]
    lines.append("|---|---|---|---|---|")
    for kind, found in logs.items():
        correct = sum(row["outcome"] == "passed" for row in rows if row["kind"] == kind)
        mean = f"{math.exp(statistics.mean(found.values())):.3f}" if found else "-"
        against = "-" if kind == "no profile" else _against(found, logs["no profile"], problem)
        lines.append(f"| {kind} | {len(found)} | {correct} | {mean} | {against} |")
    best = [max(found[pair] for found in logs.values() if pair in found) for pair in problem]
    lines.append(f"\ndiagnoses over raw counters: {_against(logs['diagnoses'], logs['raw counters'], problem)}")
    lines.append(f"the best child over its parent, losses as 1: {math.exp(statistics.fmean(best)):.3f}")
    return Report("\n".join(lines))


def _against(found: Mapping[str, float], other: Mapping[str, float], problem: Mapping[str, str]) -> str:
    """Return the ratio of two kinds over the pairs that both have, with its interval, as text."""
    both = {pair: found[pair] - other[pair] for pair in found if pair in other}
    if not both:
        return "-"
    low, high = interval_by_problem((problem[pair], value) for pair, value in both.items())
    middle = math.exp(statistics.fmean(both.values()))
    return f"{middle:.3f} [{math.exp(low):.3f}, {math.exp(high):.3f}], {verdict_of(low, high)}"


def gain(ratio: float | None) -> float:
    """Return the logarithm of a child's speed over its parent's; 0 for a failure or a loss."""
    return max(0.0, math.log(ratio)) if ratio else 0.0


def verdict_of(low: float, high: float) -> str:
    """Say whether a kind of evidence wins or loses; undecided, the shorter prompt stays."""
    return "wins" if low > 0 else "loses" if high < 0 else "undecided"


def run(words: Sequence[str]) -> Report:
    """Carry out one of the commands; see the module."""
    command, *rest = words
    paths = [Path(word) for word in rest]
    if command == "choose" and not paths:
        return choose()
    if command in ("ask", "judge") and len(paths) == 2:
        return (ask if command == "ask" else judge)(*paths)
    if command in ("tell", "gains") and len(paths) == 1:
        return (tell if command == "tell" else gains)(paths[0])
    raise SandboxError("give choose, ask TREE OUT, judge TREE OUT, tell FILE or gains TREE; see bench/pairs.py")
