"""A judging of a released kernel, as it is kept: by whom, how, and the whole verdict."""

import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from bench.measuring import Report
from bench.results.records import read_lines, write_lines
from kernelwright.evals.metrics import geometric_mean
from kernelwright.evals.tables import in_markdown, markdown_table, number_text, share_text
from kernelwright.problems.problem import Record
from kernelwright.sandbox.storage import write_atomically
from kernelwright.sandbox.verdict.judge_version import JUDGE
from kernelwright.sandbox.verdict.report import counted_speedup
from kernelwright.sandbox.verdict.settings import Accuracy, JudgingEffort
from kernelwright.sandbox.verdict.verdicts import Failed, Measurement, Passed, Verdict

OURS, THEIRS = "kernelwright", "KernelBench"
RECORDS = Path(__file__).parents[1] / "records" / "others.jsonl.gz"
REASON = 300
"""Characters of a reason that are kept beside the verdict."""


class Row(Record):
    """One judging. `sizes`: whether the problem is the release's own or KernelBench's present one."""

    source: str
    name: str
    digest: str
    """sha256 of the kernel, as 64 hex digits."""
    claimed: float | None
    sizes: Literal["released", "present"] = "released"
    way: Literal["kernelwright", "KernelBench"]
    accuracy: Accuracy | None
    """None for KernelBench's evaluator, which has its own."""
    effort: JudgingEffort | None
    device: str
    outcome: str
    """`passed`, `failed: STAGE`, `not judged`; of the evaluator `passed` or `failed`."""
    why: str = ""
    speedup: float | None = None
    """As that way reports it."""
    seconds: float
    verdict: Verdict | None = None
    """With all raw samples; None where there is none, and in rows of the evaluator."""

    @property
    def key(self) -> tuple[str | None, ...]:
        """Identity of the judging: rows of one key are the same question."""
        return self.source, self.name, self.sizes, self.way, self.accuracy, self.effort

    def meets(self, accuracy: Accuracy) -> bool | None:
        """Return whether the kernel is right at an accuracy; None where this judging does not show it."""
        if self.verdict is None:
            return self.outcome == "passed" if accuracy == self.accuracy and self.outcome != "not judged" else None
        if isinstance(self.verdict, Failed):
            # Another stage than the comparison fails at every accuracy. A comparison ends at its first error, and what
            # `default` or `tf32` refuses is wrong at `ieee` too.
            is_narrower = accuracy == "ieee" and self.accuracy in ("default", "tf32")
            return False if self.verdict.stage != "check" or accuracy == self.accuracy or is_narrower else None
        return True if accuracy == self.accuracy else self.verdict.evidence.meets(accuracy)


def outcome_of(verdict: Verdict) -> tuple[str, str]:
    """Return the outcome and why, as a row has them."""
    if isinstance(verdict, Passed):
        return "passed", verdict.measurement.comparison
    return f"failed: {verdict.stage}", " ".join(verdict.reason.split())[:REASON]


def read_rows(*paths: Path) -> list[Row]:
    """Read the rows of files, the last of each key; a file that is not there has none."""
    found: dict[tuple[str | None, ...], Row] = {}
    for path in paths:
        if path.suffix == ".gz":
            found |= {row.key: row for row in read_lines(path, Row.model_validate_json)}
        else:
            lines = path.read_text(encoding="utf-8").splitlines()
            found |= {row.key: row for row in map(Row.model_validate_json, lines)}
    return list(found.values())


def add_rows(paths: list[Path], records: Path = RECORDS) -> list[Row]:
    """Add rows of these files to the records; all that are kept then."""
    rows = read_rows(*([records] if records.exists() else []), *paths)
    rows.sort(key=lambda row: tuple(map(str, row.key)))
    if paths:
        write_lines(records, rows)
    return rows


PAGE = Path(__file__).parents[2] / "docs" / "others.md"
SOURCES = {
    "CUDA-L1": (210, "deepreinforce-ai/CUDA-L1, `optimized_cuda_code/h100.json`, commit 51e8356, MIT"),
    "KernelAgent": (32, "Laurawly/kernelagent-artifacts, commit 14ed07a"),
    "robust-kbench": (8, "SakanaAI/robust-kbench, `highlighted`, commit 078f5ba, Apache 2.0"),
}
"""Number of kernels of each release, and its address."""
ACCURACIES: tuple[Accuracy, ...] = ("ieee", "default", "kernelbench")
PHRASE = 110
"""Characters of a phrase in the table."""

INTRO = """\
# Kernels that others released

Kernels of public releases, judged as any candidate is, beside what their authors state and what KernelBench's own
evaluator says of them on the same card. Each is judged at the sizes of its release, at effort `search` unless a row
says otherwise, with `--weights auto`. `python -m bench others PATH` judges them from a checkout of the release, and
`python -m bench others keep FILE` adds what it found to `bench/records/others.jsonl.gz` and draws this page. Of the
releases only names, digests and claims are kept. They are judged in the order of the release; a part judged at
`kernelbench` alone was drawn with a seed. Such rows have no interval here, and their speedup is that of the looser
accuracy.

A claim was made with the authors' own card, software and baseline, usually eager PyTorch. Our speedup is against the
fastest baseline at equal accuracy: eager, eager at default precision or `torch.compile`, host ahead, L2 cache cold. A
kernel that mostly saves launches can be slower than stated here, and the claim be right for its setting."""
FAIR = """\
## What a refusal means

- `check`: the result is wrong on some input at that accuracy; the phrase names the element. `kernelbench` allows an
  absolute error of 1e-4 on inputs as drawn, as the benchmark does; what passes there may be wrong at `ieee`.
- `scan`, `build`, `load` or `run`: there is no class `ModelNew`, it does not compile, it raises, or it breaks a rule of
  the judge: it changes an input, or returns a tensor that is computed only when somebody looks.
- "not judged": the problem itself cannot be judged, which says nothing of the kernel.

Three refusals rest on a rule of ours that others may not share. A result has to be computed in each call: memory of an
earlier result that is handed out again counts as not written, even where the values are the same for every input. The
error is that of the worst element over fresh inputs and weights, where KernelBench draws five times. And outputs have
the dtype of the reference."""


class Judged(NamedTuple):
    first: Row
    ours: tuple[Row, ...]
    theirs: Row | None

    def meets(self, accuracy: Accuracy) -> bool | None:
        """Return whether it is right at an accuracy, by any judging that shows it."""
        known = [found for row in self.ours if (found := row.meets(accuracy)) is not None]
        return all(known) if known else None

    @property
    def best(self) -> Row | None:
        """The passed judging at the narrowest accuracy, of the most effort."""
        order = {"ieee": 0, "default": 1, "tf32": 2, "kernelbench": 3}
        passed = [row for row in self.ours if row.outcome == "passed"]
        return min(passed, key=lambda row: (row.effort != "rank", order[str(row.accuracy)]), default=None)

    @property
    def counted(self) -> float | None:
        """The speedup as boards count it; None where no judging passed."""
        best = self.best
        return None if best is None or best.speedup is None else counted_speedup(best.speedup, best.why)


def keep(words: Sequence[str]) -> Report:
    """Add the files' rows to the records, and draw the page."""
    rows = add_rows([Path(word) for word in words])
    if not rows:
        return Report(f"  {RECORDS} holds nothing; judge with python -m bench others, then keep its file", holds=False)
    write_atomically(PAGE, page(rows))
    return Report(f"  {len(rows)} judgings kept; drawn: {PAGE}", holds=True)


def page(rows: Iterable[Row]) -> str:
    found = list(rows)
    parts = [INTRO, _circumstances(found)]
    for sizes, title in (("released", "At the sizes of the release"), ("present", "At KernelBench's present sizes")):
        kernels = _kernels(found, sizes)
        if kernels:
            parts += [f"## {title}", _summary(kernels)]
            parts += [markdown_table(COLUMNS, [_line(one) for one in kernels if one.first.source == source])
                      for source in dict.fromkeys(one.first.source for one in kernels)]  # fmt: skip
    return "\n\n".join([*parts, FAIR]) + "\n"


def _kernels(rows: Sequence[Row], sizes: str) -> list[Judged]:
    by_kernel: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        if row.sizes == sizes:
            by_kernel.setdefault((row.source, row.name), []).append(row)
    found = []
    for _, judgings in sorted(by_kernel.items(), key=lambda item: (item[0][0], _number(item[0][1]))):
        theirs = next((row for row in judgings if row.way == THEIRS), None)
        found.append(Judged(judgings[0], tuple(row for row in judgings if row.way == OURS), theirs))
    return found


def _number(name: str) -> tuple[str, int, str]:
    level, _, number = name.partition("/")
    return level, int(number) if number.isdecimal() else 0, name


def _circumstances(rows: Sequence[Row]) -> str:
    devices = ", ".join(sorted({row.device for row in rows}))
    versions = sorted({row.verdict.evidence.versions.get(JUDGE, "not recorded") for row in rows if row.verdict})
    judged_by = f"; judge version {', '.join(versions)}" if versions else ""
    places = "\n".join(f"- {name}: {SOURCES[name][1]}" for name in SOURCES if any(row.source == name for row in rows))
    return f"Judged on {devices}{judged_by}. The releases:\n\n{places}"


SUMMARY = (
    "release", "judged", "right at ieee", "at default", "at kernelbench", "KernelBench: right",
    "faster", "median claim", "median speedup", "geometric mean, failures as 1",
)  # fmt: skip


def _summary(kernels: Sequence[Judged]) -> str:
    lines = []
    for source in dict.fromkeys(one.first.source for one in kernels):
        mine = [one for one in kernels if one.first.source == source and one.ours]
        right = [one for one in mine if one.best]
        theirs = [one.theirs for one in kernels if one.first.source == source and one.theirs]
        faster = sum(one.best is not None and one.best.why == "faster" for one in mine)
        claims = [one.first.claimed for one in right if one.first.claimed]
        speedups = [one.counted for one in right if one.counted is not None]
        mean = geometric_mean([one.counted or 1.0 for one in mine]).value if mine else None
        lines.append((
            source, f"{len(mine)} of {SOURCES[source][0]}", *(_count(mine, accuracy) for accuracy in ACCURACIES),
            f"{sum(row.outcome == 'passed' for row in theirs)} of {len(theirs)}",
            share_text(faster / len(mine) if mine else None),
            number_text(statistics.median(claims) if claims else None),
            number_text(statistics.median(speedups) if speedups else None), number_text(mean),
        ))  # fmt: skip
    return markdown_table(SUMMARY, lines)


def _count(kernels: Sequence[Judged], accuracy: Accuracy) -> str:
    known = [found for one in kernels if (found := one.meets(accuracy)) is not None]
    return f"{sum(known)} of {len(known)}"


COLUMNS = (
    "kernel", "claim", "ieee", "default", "kernelbench", "KernelBench", "GPU time, ms", "call latency, ms",
    "host time, ms", "speedup [95 %]", "of any baseline", "judged", "in a phrase",
)  # fmt: skip
YES_NO = {True: "right", False: "wrong", None: "-"}


def _line(one: Judged) -> Sequence[str]:
    best = one.best
    theirs = "-" if one.theirs is None else YES_NO[one.theirs.outcome == "passed"]
    if one.theirs is not None and one.theirs.speedup is not None:
        theirs += f", {one.theirs.speedup:.2f}"
    start = (one.first.name, number_text(one.first.claimed), *(YES_NO[one.meets(each)] for each in ACCURACIES), theirs)
    found = best.verdict.measurement if best is not None and isinstance(best.verdict, Passed) else None
    if found is not None:
        times = [number_text(ms, ".4g") for ms in (found.gpu_time_ms, found.call_latency_ms, found.host_time_ms)]
        ends = found.interval
        speedup = f"{found.speedup:.2f} [{ends.low:.2f}, {ends.high:.2f}]"
        any_baseline = number_text(found.speedup_any)
    else:
        times, any_baseline = ["-"] * 3, "-"
        speedup = number_text(best.speedup) if best else "-"
    judged = best.why.replace("_", " ") if best else "refused"
    return (*start, *times, speedup, any_baseline, judged, in_markdown(_phrase(one, found)))


def _phrase(one: Judged, found: Measurement | None) -> str:
    """Return the reason of a refusal, or the circumstances of the speedup."""
    if one.best is None:
        refused = one.ours[-1] if one.ours else None
        return "not judged yet" if refused is None else f"{refused.outcome}: {refused.why}"[:PHRASE]
    if found is None:
        return ""
    label = one.best.verdict.evidence.authenticity.label if one.best.verdict else ""
    said = [f"against {found.closest.baseline}", f"kernels: {label}"]
    if found.is_launch_bound:
        said.append("launch-bound")
    if one.best.verdict and one.best.verdict.evidence.weights == "seeded":
        said.append("weights by seed")
    return ", ".join(said)[:PHRASE]
