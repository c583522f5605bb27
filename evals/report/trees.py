"""A run as a tree in the terminal: which attempt started from which, and what came of each."""

from collections.abc import Mapping

from rich.text import Text
from rich.tree import Tree

from kernelwright.agent.log.records import Attempt
from kernelwright.agent.log.view import View
from kernelwright.evals.report.summary import ending_words
from kernelwright.sandbox.machine.escaping import escaped, one_line
from kernelwright.sandbox.verdict.verdicts import Passed

STYLES = {"passed": "green", "failed": "red", "no candidate": "magenta"}


def run_tree(title: str, views: Mapping[str, View]) -> Tree:
    """One branch for each problem, in it the attempts under their parents."""
    tree = Tree(Text(title, style="bold"))
    for name, view in views.items():
        best = view.best
        ended = f"; {ending_words(view)}" if view.stopped else ""
        passed = sum(1 for attempt in view.attempts if attempt.passed)
        branch = tree.add(Text(f"{name}: {passed} of {len(view.attempts)} attempts passed{ended}", style="bold"))
        nodes: dict[int | None, Tree] = {None: branch}
        for attempt in view.attempts:
            label = attempt_words(attempt, best is not None and attempt.number == best.number)
            nodes[attempt.number] = nodes.get(attempt.ask.parent, branch).add(label)
    return tree


def attempt_words(attempt: Attempt, best: bool) -> Text:
    """`7 improve, tile the rows: passed, 1.42 x, 0.81 ms`, and a star for the best."""
    idea = f", {escaped(attempt.ask.idea)}" if attempt.ask.idea else ""
    style = next((style for start, style in STYLES.items() if attempt.outcome.startswith(start)), "")
    words = Text(f"{attempt.number} {attempt.ask.role}{idea}: ")
    words.append(attempt.outcome, style=style)
    if isinstance(attempt.ruling, Passed):
        words.append(f", {attempt.speedup:.2f} x{attempt.marks}, {attempt.candidate_ms:.3g} ms")
    elif attempt.detail:
        words.append(f": {one_line(attempt.detail.partition(chr(10))[0], 100)}")
    if best:
        words.append(" *", style="bold yellow")
    return words
