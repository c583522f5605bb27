"""Sections of a prompt, iterations and ideas, and their worth to a language model: from the record of real runs.

`python -m bench sections` prints the tables of docs/search.md. `python -m bench sections RUN...` takes the folders of
runs into the record first. These are runs over the same problems with other sections left out of their prompts
(`kernelwright run --without SECTION`), and one leaves out nothing. Only the first attempt at each problem is compared.

`python -m bench sections choose|ask|judge|tell|gains`: kinds of evidence in an improvement's prompt, and what the
answers after the first were worth, see `bench/pairs.py`.
"""

import statistics
from collections.abc import Sequence
from pathlib import Path

from bench import pairs
from bench.measuring import Report
from bench.results.figures import by_idea, by_role
from bench.results.records import Kept, Searched, indexed, read_lines, searched, write_lines
from kernelwright.evals.metrics import geometric_mean
from kernelwright.evals.tables import number_text
from kernelwright.sandbox.verdict.verdicts import Passed

RECORDED = "recorded"
RECORD = Path(__file__).parent / "records" / "real-answers.jsonl.gz"
HEAD = "| left out | tokens of the prompt | first answers correct | speedup of those | over the complete prompt's |"
ROLES = "| answers of | role | asked | correct | faster than its parent | median gain |"
IDEAS = "| answers of | idea | tried | won | median gain of an improvement |"


def run(*folders: str) -> Report:
    """Sections of a prompt against each other; runs that are named first replace those for the same targets."""
    if folders[:1] and folders[0] in pairs.COMMANDS:
        return pairs.run(folders)
    found = list(read_lines(RECORD, Searched.model_validate_json))
    if folders:
        fresh = [one for folder in folders for one in searched(Path(folder))]
        targets = {target(one) for one in fresh}
        found = [one for one in found if target(one) not in targets] + fresh
        found.sort(key=lambda one: (target(one) != "cpp", target(one), left_out(one), one.problem))
        write_lines(RECORD, found)
    return Report("\n\n".join(tables(found)))


def tables(found: Sequence[Searched]) -> list[str]:
    """Draw in Markdown: for each target by the sections left out of a prompt; by kind of request and by idea, by model.

    Of the last two only runs with complete prompts count.
    """
    parts: dict[str, dict[str, dict[str, Searched]]] = {}
    whole: dict[str, list[Kept]] = {}
    for one in found:
        model = answered_by(one)
        if not left_out(one):
            whole.setdefault(model, []).append(indexed([one], []).rows[0])
        if model != RECORDED:
            parts.setdefault(target(one), {}).setdefault(left_out(one), {})[one.problem] = one
    trials = [
        f"| {model} | {role} | {reported.asked} | {reported.right} | {faster} | {number_text(reported.gain)} |"
        for model, rows in sorted(whole.items())
        for role, reported in by_role(rows).items()
        for faster in [number_text(reported.faster, "d")]
    ]
    ideas = [
        f"| {model} | {idea} | {reported.tried} | {reported.won} | {number_text(reported.gain)} |"
        for model, rows in sorted(whole.items())
        for idea, reported in by_idea(rows).items()
    ]
    return [*map(_sections, parts.values()), _table(ROLES, trials), _table(IDEAS, ideas)]


def _sections(parts: dict[str, dict[str, Searched]]) -> str:
    """Over the problems that every run was asked about."""
    common = set.intersection(*map(set, parts.values()))
    same = {name: {problem: part[problem] for problem in sorted(common)} for name, part in parts.items()}
    return _table(HEAD, [_section(name, part, same.get("", {})) for name, part in same.items()])


def answered_by(one: Searched) -> str:
    """Return the model's name as the run was given it; `recorded` for the answers that ship."""
    return str(one.header["config"]["search"]["model"])


def target(one: Searched) -> str:
    return str(one.header["config"]["search"]["target"])


def left_out(one: Searched) -> str:
    """Return the sections that a run's prompts did without, as the table names them; empty for none."""
    return ", ".join(one.header["config"]["search"]["without"])


def _section(name: str, part: dict[str, Searched], whole: dict[str, Searched]) -> str:
    first = {problem: _first(one) for problem, one in part.items()}
    right = [speedup for speedup in first.values() if speedup]
    pairs = [(speedup, _first(whole[problem])) for problem, speedup in first.items() if problem in whole]
    ratios = [mine / theirs for mine, theirs in pairs if mine and theirs]
    tokens = statistics.mean(one.attempts[0].prompt_tokens for one in part.values())
    speedups = number_text(geometric_mean(right).value if right else None)
    over = f"{geometric_mean(ratios).value:.2f} ({len(ratios)} problems)" if name and ratios else ""
    cells = name or "nothing", f"{tokens:.0f}", f"{len(right)} of {len(first)}", speedups, over
    return f"| {' | '.join(cells)} |"


def _first(one: Searched) -> float | None:
    """Return the speedup of the first answer by its first verdict, at one effort in all runs; None if incorrect."""
    found = one.attempts[0].attempt.verdict if one.attempts else None
    return found.measurement.speedup if isinstance(found, Passed) else None


def _table(head: str, lines: Sequence[str]) -> str:
    return "\n".join([head, "|---" * head.count(" | ") + "|---|", *lines])
