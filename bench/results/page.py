"""docs/results.md: drawn from the folder of results alone, the same bytes on every machine."""

import statistics
import tomllib
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from textwrap import fill

from bench.results import figures, pictures
from bench.results.again import TOOLS, read_hazards
from bench.results.figures import DtypeBoard, dtype_boards, level_figures, level_of
from bench.results.keeping import Selection, read_selection
from bench.results.records import Index, Kept, read_index
from kernelwright.evals.leaderboard import LeaderboardCell
from kernelwright.evals.metrics import THRESHOLDS, VerdictSummary, fast_curve
from kernelwright.evals.runs import PromptChoice, show_prompt
from kernelwright.evals.tables import estimate_text, in_markdown, markdown_table, number_text, share_text
from kernelwright.problems import ProblemError
from kernelwright.sandbox.storage import write_atomically
from kernelwright.sandbox.verdict.judge_version import JUDGE, OLD_JUDGE
from kernelwright.sandbox.verdict.verdicts import AS_SHIPPED, COMPILED, EAGER

HEAD = """\
# Results: a model's kernels for KernelBench

Answers of a language model to the prompts as they are rendered, for problems of a benchmark that others wrote, judged
as any kernel is. Which problems was fixed by a rule before any answer was asked for: {rule}. Answers are by {model};
judged on {device}.

Each question was a conversation of its own, with no tools but to read its task and write its answer. The answering
side saw one task file: role, contract, how CUDA is built, an example for another problem, reference, form of the
reply, hardware and limits, advice by pattern, snippets, and the step asked for. It saw no judge, no device, and of
other answers the one to repair or improve, and a line on each earlier one.
A [full prompt](results-prompt.txt), for a problem of our own catalog, shows all sections. Temperature and length were
the model's own defaults. {remark}

A speedup is the median ratio of times against the fastest baseline at equal accuracy: strict eager, eager at default
precision, channels_last, or `torch.compile` in its default mode, strict. "Of any baseline" counts less accurate ones
too, eager with TF32 among them. A failure stays in every denominator. What is faster than any algorithm could be, or
was refused by a later judge, is a failure: [metrics](judge.md#metrics). Weak problems, whose result hardly depends on
the input, are shown and not ranked.

`make results` draws this page and its pictures from the folder `results`; only `notes.toml` is
typed. The table counts ranked problems:

- "judged faster": the share of all problems whose kernel the judge calls `faster`, and of those not at the wall;
- "faster than any": the same two shares, with the intervals against all baselines, TF32 and others among them, above 1;
- "at the wall": problems where PyTorch already moves data at 97 % of a copy's speed or more. `selection.toml` has named
  them since the second round, whatever is answered or measured later. Where more is read than written a kernel can
  exceed a copy;
- "median" and "geometric mean of the correct": over correct kernels, whose number is under "correct". A speedup above 1
  that is too noisy or unconfirmed counts as 1;
- "failures as 1": the geometric mean over all problems; "failures and losses as 1": with slower kernels as 1 too;
- "against any": the same mean as "failures as 1", against the fastest of all baselines, TF32 and others among them;
- fast_1, fast_2: the share of all problems with a correct kernel more than 1 or 2 times as fast;
- "of the roofline": the [roofline](judge.md#roofline)'s time over the kernel's, as a geometric mean. A kernel that
  needs fewer operations than the reference can be below that time; such are counted apart;
- "of a copy": the same for a copy of as many bytes as the problem has to move."""
ROUNDS = """\
A round is the first answer to each problem, the second, and so on:"""
HOW_MEASURED = """\
How each was measured; "samples" are paired samples in so many pairs of processes, "judge" is the judge version, or in
older records the start of a digest. Fewer than five pairs are enough where each took so long that the limit on the time
of a judging was met, or where the kernel is slower beyond doubt:"""
UNDER_WAY = """\
**This is under way.** Until a search is at its end its figures can change. What was timed by an older clock, or with
the effort `search` alone, is judged again in full; the column "effort" says where that is done."""
OURS_TOO = {"level1/65": "conv_transpose2d_kernel3x7", "level1/75": "conv_transpose2d_grouped_asymmetric"}
"""Problems that are in our catalog too, at the same size."""
LIKE_OURS = """\
level1/65 and level1/75 are in our catalog too (`conv_transpose2d_kernel3x7` and `conv_transpose2d_grouped_asymmetric`),
and one line of advice in the prompts, on the residues of a transposed convolution's stride, comes from there. Without
these two the geometric mean is {without}. All references had been timed against themselves before
([KernelBench](kernelbench.md))."""

SECTIONS = {
    "levels": """\
By level:""",
    "problems": """\
## Every problem

Under "answers" stands what came of each: the speedup of its first verdict, or where it failed. The speedup is that of
the best, by the verdict that counts, "judged" that verdict's word; "again" is that of
[a second judging](#judged-a-second-time), by itself. "eager" is strict eager, "default" eager at default precision,
"compiled" torch.compile; less accurate ones are shown too. Where nothing is correct PyTorch's times and the
roofline are those of a brief look before the first answer. Tokens are those of prompts and answers together, estimated
from their lengths. The kernels lie in `results/kernels`, a folder a dtype.""",
    "above": """\
## Factors above 10

Where each comes from:""",
    "tags": """\
## Tags

Rules read each kept kernel's source; a rule can miss what is written in an unusual way, and none changes a verdict.

- emulated fp32: products of fp16, TF32 or bf16 pieces on tensor cores (`fp16x3`: two pieces an operand, three
  products; `int8`: what fp16 leaves, in fixed point), within the error bound of `ieee`; cuBLAS and cuDNN compute in
  fp32 then;
- other algorithm: below the roofline's time, with fewer operations than the reference;
- spin barrier: a block waits for what another block stores, so all must be resident at once;
- device globals: state of its own on the device, so two streams cannot run it at once;
- fixed multiprocessors: written for 132 of them;
- no shape check: other shapes than the problem's give wrong results or faults, without an error;
- no device guard: launches on the current device, whatever device the inputs are on.""",
    "curves": """\
## How many are faster, and than what

fast_p is the share of all ranked problems that have a correct kernel more than p times as fast as the baseline.""",
    "turns": """\
## What further answers gained

The best of the first answers to each problem, by the verdicts that count. Where nothing is correct yet PyTorch goes on
being used, which counts as 1.""",
    "failures": """\
## What failed, and why

Each with its deciding line; logs and sources stand in the record.""",
    "ideas": """\
## Ideas by gain

A draft wins if it is correct in the end, an improvement if it is at least 2 % faster than what it started from; its
repairs belong to it, and what waits for one is not counted yet. The gain is that of correct improvements over their
parents.""",
    "commands": """\
## Judge one again""",
}
ENDED_EARLY = """\
Searches that ended before all their answers were asked for:"""
ROLES = """\
By what was asked for; a repair starts from a failure, an improvement from a correct kernel:"""
JUDGED_TWICE = """\
## Judged a second time

By another process with other seeds, against the problems of a fresh checkout
(`python -m bench.results again KernelBench`). Where the search's own verdict is of an older clock or of less effort,
the first such verdict takes its place, and the next is the second judging. Intervals meet if they have a point in
common."""
MADE = """\
## How it was made

`results/records.jsonl.gz` has a line a problem: every answer, candidate and verdict with all raw samples, without the
benchmark's texts; `results/index.json` is derived from it and from the second judgings, once there are any, in
`results/again.jsonl.gz`. How to make a run like this one is in `results/README.md`. The last column has the judge
versions that the verdicts name, in older records the start of a digest; verdicts that name none are not on record."""
LIMITS = """\
## What this does not show

- One model, one kind of card, and problems whose numbers end in 5: no ranking of models, and no average of the
  benchmark.
- The model may have seen the benchmark, or kernels for it, when it was trained; nobody can tell from here.
- At most four answers a problem: neither what more of them would reach, nor what as many unrelated drafts would.
- The sizes are the benchmark's own. A kernel may be slower at others, or wrong where it was never asked.
- Figures that others publish stand here only where problem, size, dtype and baseline are the same; of the chosen
  problems none is known to be so."""


PAGE, PROMPT, NOTES = "results.md", "results-prompt.txt", "notes.toml"
PROMPTED = "conv_transpose2d_kernel3x7"
"""The problem of the catalog whose first prompt is shown."""
AGAINST = {
    "best": "fastest at equal accuracy",
    "eager": "strict eager",
    "shipped": "default precision",
    "compile": "torch.compile",
}
MOST_REASONS = 12
"""Failures of one kind that are listed with their reason."""


def write_page(folder: Path, docs: Path) -> list[Path]:
    """Write the page and its pictures; the files. Raises `ProblemError` where the folder holds no run."""
    index, selection = read_index(folder), read_selection(folder)
    found = dtype_boards(index)
    texts = {docs / PAGE: page(index, selection, found, folder)}
    for one in found:
        texts[docs / "pictures" / f"results-{one.dtype}.svg"] = pictures.speedups(one)
        texts[docs / "pictures" / f"results-{one.dtype}-curves.svg"] = pictures.fast_curves(one)
    choice = PromptChoice(problem=PROMPTED, role="propose", target="cuda", device="H200")
    texts[docs / PROMPT] = show_prompt(choice, frozenset()).text + "\n"
    (docs / "pictures").mkdir(parents=True, exist_ok=True)
    for path, text in texts.items():
        write_atomically(path, text)
    return list(texts)


def read_notes(folder: Path) -> dict[str, dict[str, str]]:
    """Read what is written by hand: a remark on the questions, sources of large factors by dtype and address."""
    path = folder / NOTES
    if not path.exists():
        return {}
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise ProblemError(f"{path} cannot be read ({error}); correct it") from None


def page(index: Index, selection: Selection, found: Sequence[DtypeBoard], folder: Path) -> str:
    """Return the text of the page; `folder` has what is beside the index: sentences, and outcomes of tools."""
    notes, found_by, wall = read_notes(folder), read_hazards(folder), selection.at_the_wall
    parts = [
        _head(selection, found, notes.get("questions", {}).get("remark", "")),
        *_missing(index, selection),
        _rounds(index),
    ]
    parts.append(markdown_table(SHORT, [(one.dtype, *_short(one, one.ranked, wall)) for one in found]))
    parts += [fill(LIKE_OURS.format(without=_without_ours(found)), 120), SECTIONS["levels"]]
    parts.append(markdown_table(("dtype", "level", *SHORT[1:]), [row for one in found for row in _by_level(one, wall)]))
    parts.append(SECTIONS["problems"])
    for one in found:
        parts += [f"### In {one.dtype}", f"![{one.dtype}](pictures/results-{one.dtype}.svg)"]
        parts.append(markdown_table(EVERY, [_line(kept, cell, wall) for kept, cell in one.pairs]))
        parts += [
            *_unranked(one),
            HOW_MEASURED,
            markdown_table(HOW, [_how(kept, cell, found_by) for kept, cell in one.pairs]),
        ]
    parts += [SECTIONS["above"], _above(found, notes), SECTIONS["tags"]]
    parts.append(SECTIONS["curves"])
    for one in found:
        parts.append(f"![fast_p in {one.dtype}](pictures/results-{one.dtype}-curves.svg)")
        parts.append(markdown_table(("against", *(f"fast_{p:g}" for p in THRESHOLDS)), _curve(one)))
    parts += [SECTIONS["turns"], _by_answers(found), *_ended_early(index), ROLES, _roles(index)]
    parts += [SECTIONS["failures"], _failures(index)]
    parts += [SECTIONS["ideas"], _ideas(index), _again(index), _commands(index, selection), _made(index), LIMITS]
    return "\n\n".join(part.strip("\n") for part in parts if part) + "\n"


SHORT = (
    "dtype", "problems", "correct", "judged faster", "faster than any", "at the wall", "median of the correct",
    "geometric mean of the correct [95 %]", "failures as 1", "failures and losses as 1", "against any, failures as 1",
    "fast_1", "fast_2", "of the roofline", "of a copy",
)  # fmt: skip
EVERY = (
    "problem", "answers", "kernel, ms", "eager, ms", "default, ms", "compiled, ms", "roofline, ms", "of a copy",
    "speedup [95 %]", "of any baseline", "judged", "against", "again",
)  # fmt: skip
HOW = ("problem", "clock", "effort", "samples", "judge", "accuracy", "tokens", "racecheck", "synccheck", "tags")
ABOVE = 10.0
"""Speedups above this have a sentence each in `results/notes.toml`."""


def _head(selection: Selection, found: Sequence[DtypeBoard], remark: str) -> str:
    """Title and first paragraphs, with what differs from run to run put in."""
    said = HEAD.format(
        rule=f"{selection.rule} ({len(selection.problems)} problems, commit {selection.commit})",
        model=", ".join(dict.fromkeys(one.row.model for one in found)),
        device=", ".join(dict.fromkeys(kept.device for one in found for kept in one.kept)),
        remark=remark,
    )
    return "\n\n".join(part if part.startswith("- ") else fill(part, 120) for part in said.split("\n\n"))


def _missing(index: Index, selection: Selection) -> list[str]:
    """List the chosen problems that have not ended, or not begun: the page says so first."""
    ended = {(row.address, row.dtype) for row in index.rows if row.stopped is not None}
    begun = {(row.address, row.dtype) for row in index.rows if row.is_begun}
    said = []
    for dtype in selection.dtypes:
        asked = selection.asked(dtype)
        waiting = [address for address in asked if (address, dtype) not in ended]
        unbegun = [address for address in asked if (address, dtype) not in begun]
        if waiting:
            wait = "wait for answers, or for a judging, be it the best's in full"
            said.append(f"In {dtype} {len(waiting)} of {len(asked)} problems {wait}.")
        if unbegun:
            said.append(f"Of {', '.join(unbegun)} none is judged yet; they stand in no table and no share.")
    return [fill(f"{UNDER_WAY} {' '.join(said)}", 120)] if said else []


Wall = Mapping[str, Collection[str]]
"""By dtype, the addresses of problems at the wall."""


def _short(one: DtypeBoard, pairs: Sequence[tuple[Kept, LeaderboardCell]], wall: Wall) -> Sequence[str]:
    found = level_figures(pairs, list(one.results()), wall.get(one.dtype, ()))
    below = f", {found.below_floor} below" if found.below_floor else ""
    faster = [", ".join(map(share_text, two)) for two in ((found.faster, found.faster_below), found.faster_than_any)]
    counts = (str(found.problems), str(found.right), *faster, str(found.at_the_wall))
    means = (f"{found.with_failures:.2f}", f"{found.with_losses:.2f}", f"{found.against_any:.2f}")
    shares = (share_text(found.fast_1["best"]), share_text(found.fast_2), share_text(found.of_floor) + below)
    return (*counts, number_text(found.median), estimate_text(found.mean), *means, *shares, share_text(found.of_copy))


def _by_level(one: DtypeBoard, wall: Wall) -> Iterable[Sequence[str]]:
    for level in one.levels:
        pairs = [pair for pair in one.ranked if level_of(pair[0]) == level]
        if pairs:
            yield (one.dtype, level, *_short(one, pairs, wall))


def _without_ours(found: Sequence[DtypeBoard]) -> str:
    said = []
    for one in found:
        others = [pair for pair in one.ranked if pair[0].address not in OURS_TOO]
        mean = level_figures(others, ["best"]).mean if others else None
        said.append(f"{estimate_text(mean)} in {one.dtype}")
    return " and ".join(said)


def _line(kept: Kept, cell: LeaderboardCell, at_the_wall: Wall) -> Sequence[str]:
    found = cell.published
    start = (f"{kept.address} {in_markdown(kept.title.partition('_')[2])}", _answers(kept))
    reported = found if found is not None and found.passed else kept.reference
    times = [number_text(ms, ".4g") for ms in _baseline_times(reported)]
    wall = "at the wall, " if kept.address in at_the_wall.get(kept.dtype, ()) else ""
    if found is None or not found.passed:
        return (*start, "-", *times, "-", "-", "-", wall + cell.status, "-", _judged_again(kept))
    speedup = f"{number_text(found.speedup)} [{number_text(found.low)}, {number_text(found.high)}]"
    if cell.status in ("quarantined", "provisional", "weak problem"):
        speedup += f" ({cell.status})"
    fastest = min(found.speedups, key=lambda name: found.speedups[name], default="-")
    own = number_text(found.candidate_ms, ".4g")
    judged = wall + str(found.comparison).replace("_", " ")
    copy = share_text(figures.copy_share(kept, cell))
    any_baseline = number_text(found.speedup if found.speedup_any is None else found.speedup_any)
    return (*start, own, *times, copy, speedup, any_baseline, judged, found.counted or fastest, _judged_again(kept))


def _how(kept: Kept, cell: LeaderboardCell, hazards: Mapping[str, Mapping[str, str]]) -> Sequence[str]:
    """Describe the measurement of a row, and its kernel's source."""
    found, best = cell.published, kept.facts.best
    tokens, marks = f"{kept.tokens / 1000:.1f} k", ", ".join(kept.tags) or "-"
    if found is None or not found.passed or best is None:
        return (kept.address, "-", "-", "-", "-", "-", tokens, "-", "-", marks)
    clock = str(kept.clock).replace("_", " ")
    samples = f"{kept.samples} in {kept.worker_pairs}"
    judge = best.judge_version or "not recorded"
    tools = [in_markdown(hazards.get(best.candidate_digest, {}).get(tool, "not run")) for tool in TOOLS]
    return (kept.address, clock, found.effort, samples, in_markdown(judge[:12]), found.accuracy, tokens, *tools, marks)


def _above(found: Sequence[DtypeBoard], notes: dict[str, dict[str, str]]) -> str:
    lines = []
    for one in found:
        for kept, cell in one.pairs:
            speedup = cell.published.speedup if cell.published else None
            if speedup is not None and speedup > ABOVE:
                why = notes.get(one.dtype, {}).get(kept.address, "not explained yet")
                lines.append(f"- {kept.address} in {one.dtype}, {speedup:.1f}: {why}")
    return "\n".join(lines) or "None."


def _rounds(index: Index) -> str:
    lines = [tuple(map(str, one)) for one in figures.rounds(index.rows)]
    return f"{ROUNDS}\n\n{markdown_table(('dtype', 'round', 'asked', 'answered', 'judged'), lines)}"


def _baseline_times(found: VerdictSummary | None) -> list[float | None]:
    """Strict eager, as shipped, the fastest mode of torch.compile, the floor; None for one that is not known.

    Eager as shipped is eager where torch's own switches change nothing.
    """
    times = found.baselines_ms or {} if found else {}
    eager = times.get(EAGER)
    shipped = times.get(AS_SHIPPED, eager if found and found.usual.get("shipped") is not None else None)
    compiled = [ms for name, ms in times.items() if name.startswith(COMPILED)]
    return [eager, shipped, min(compiled, default=None), found.floor_ms if found else None]


def _answers(kept: Kept) -> str:
    """List the answers: the speedup of the first verdict, or the stage of the failure."""
    said = []
    for trial in kept.answers:
        right = trial.speedup is not None and trial.first is not None
        said.append(f"{trial.first:.2f}" if right else trial.outcome.removeprefix("failed at "))
    return ", ".join(said)


def _judged_again(kept: Kept) -> str:
    if kept.again is None:
        return "-"
    found = kept.again.measured
    if not found.passed:
        return f"refused at {found.stage}"
    words = f"{number_text(found.speedup)} [{number_text(found.low)}, {number_text(found.high)}]"
    return words if kept.again.meets else f"{words}, apart"


def _unranked(one: DtypeBoard) -> list[str]:
    said = [f"{kept.address}: {cell.why}" for kept, cell in one.pairs if cell.status in ("quarantined", "weak problem")]
    return [f"Not counted: {in_markdown('; '.join(said))}."] if said else []


def _curve(one: DtypeBoard) -> list[Sequence[str]]:
    curves = {name: fast_curve(results) for name, results in one.results().items() if results}
    return [(AGAINST[name], *map(share_text, curve.values())) for name, curve in curves.items()]


def _by_answers(found: Sequence[DtypeBoard]) -> str:
    heading = ("dtype", "after", "right", "fast_1", "geometric mean, failures and losses as 1")
    lines = [
        (one.dtype, _count(after.answers), share_text(after.right), share_text(after.fast_1), f"{after.mean:.2f}")
        for one in found
        for after in figures.after_each_answer(one)
    ]
    return markdown_table(heading, lines)


def _count(answers: int) -> str:
    return "1 answer" if answers == 1 else f"{answers} answers"


def _roles(index: Index) -> str:
    lines = [
        (role, str(found.asked), str(found.right), number_text(found.faster, "d"), number_text(found.gain))
        for role, found in figures.by_role(index.rows).items()
    ]
    return markdown_table(("asked for", "answers", "right", "faster than before", "median gain"), lines)


def _ended_early(index: Index) -> list[str]:
    """Searches that ended before all their answers were asked for, each with the reason."""
    said = []
    for row in index.rows:
        asked = index.runs[row.run]["config"]["search"]["attempts"]
        if row.stopped is not None and len(row.answers) < asked:
            count = _count(len(row.answers))
            said.append(f"- {row.address} in {row.dtype} after {count} of {asked}: {in_markdown(row.stopped)}")
    return ["\n".join([f"{ENDED_EARLY}", "", *said])] if said else []


def _failures(index: Index) -> str:
    found = figures.failures(index.rows)
    unsolved = [f"{row.address} in {row.dtype}" for row in index.rows if row.is_begun and row.kernel is None]
    parts = [f"Without a correct kernel: {', '.join(unsolved) or 'none'}.", *_unjudged(index)]
    if found:
        parts.append(
            markdown_table(("outcome", "answers"), [(outcome, str(len(ones))) for outcome, ones in found.items()])
        )
    for outcome, ones in found.items():
        reported = [
            f"- {row.address} in {row.dtype}, answer {trial.number}: {in_markdown(trial.why)}" for row, trial in ones
        ]
        more = [f"- and {len(reported) - MOST_REASONS} more"] if len(reported) > MOST_REASONS else []
        parts.append("\n".join([f"**{outcome}**", "", *reported[:MOST_REASONS], *more]))
    return "\n\n".join(parts)


def _unjudged(index: Index) -> list[str]:
    """Problems whose search ended without any answer judged, with the reason."""
    ended = [row for row in index.rows if row.stopped and not row.facts.attempts]
    return [f"{row.address} in {row.dtype} was not judged: {in_markdown(str(row.stopped))}" for row in ended]


def _ideas(index: Index) -> str:
    lines = [
        (in_markdown(idea), str(found.tried), str(found.won), number_text(found.gain))
        for idea, found in figures.by_idea(index.rows).items()
    ]
    return markdown_table(("idea", "tried", "won", "median gain of an improvement"), lines)


def _again(index: Index) -> str:
    kept = [row for row in index.rows if row.kernel]
    done = [row.again for row in kept if row.again is not None]
    met = sum(one.meets for one in done)
    days = sorted({f"{one.time:%Y-%m-%d}" for one in done})
    on = f", on {', '.join(days)}" if days else ""
    reported = (
        f"{len(done)} of {len(kept)} kept kernels were judged a second time{on}; the intervals of {met} of them meet."
    )
    apart = figures.second_apart(kept)
    if apart:
        reported += (
            f" The second speedup differs from the first by {100 * statistics.median(apart):.1f} % in the median"
            f" and by {100 * max(apart):.1f} % at most."
        )
    return f"{JUDGED_TWICE}\n\n{fill(reported, 120)}"


def _commands(index: Index, selection: Selection) -> str:
    """Show how to judge one of them again."""
    row = next((row for row in index.rows if row.kernel), None)
    if row is None:
        return ""
    cast = "" if row.dtype == "float32" else f" --dtype {row.dtype}"
    judging = index.runs[row.run]["config"]["judging"]
    compiled = "".join(f" --compile {mode}" for mode in judging["compiled"])
    fetch = f"git clone {selection.source} && git -C KernelBench checkout {selection.commit}"
    needs = "a GPU" if judging["device"] != "cpu" else "the network"
    return (
        f"{SECTIONS['commands']}\n\n```sh\n{fetch}    # needs the network\n"
        f"kernelwright judge KernelBench::{row.address} results/{row.kernel}{cast}{compiled}    # needs {needs}\n```"
    )


def _made(index: Index) -> str:
    lines = []
    for name in dict.fromkeys(row.run for row in index.rows):
        header = index.runs[name]
        judging, versions = header["config"]["judging"], header["versions"]
        of = ", ".join(f"{key} {versions[key]}" for key in sorted(versions) if key not in (JUDGE, OLD_JUDGE))
        days = f"{header['started'][:10]} to {header['ended'][:10]}"
        model = header["config"]["search"]["model"]
        rows = [row for row in index.rows if row.run == name]
        devices = ", ".join(dict.fromkeys(row.device for row in rows))
        judges = {row.facts.best.judge_version for row in rows if row.facts.best}
        by = ", ".join(sorted(one or "not on record" for one in judges))
        reported = (name, model, days, devices, judging["jail"], of, str(header["commit"] or "-")[:12], by)
        lines.append(tuple(in_markdown(each) for each in reported))
    heading = (
        "run",
        "answers from",
        "days",
        "device",
        "jail",
        "versions",
        "opened at commit",
        "kept kernels judged by",
    )
    return f"{MADE}\n\n{markdown_table(heading, lines)}"
