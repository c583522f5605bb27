"""A run whose first and second verdicts differ, and what each part of the program tells of its best."""

import io
import json
import random
import re

from rich.console import Console

from kernelwright.agent.log.best import write_best
from kernelwright.agent.log.events import Confirmed, Kept
from kernelwright.agent.log.store import RunLog
from kernelwright.agent.log.view import fold
from kernelwright.evals.formats import flashinfer, kernelbench, samples
from kernelwright.evals.formats.kernelbench import eval_results, split
from kernelwright.evals.formats.samples import outcomes_of
from kernelwright.evals.inspector.pages import RunModel
from kernelwright.evals.leaderboard import boards, compare_runs
from kernelwright.evals.plots import picture
from kernelwright.evals.report import Progress, run_tree, summary_rows, summary_table
from kernelwright.evals.verdict_store import run_summary
from tests.support.foreign import trace_problem, tree_problems
from tests.support.runs import Writer, failed, passed, problem, setting, source_of

ATTEMPT, SPEEDUP = 2, 1.2
"""The best and its number, by the verdicts that count."""
LUCKY = 3.01
"""What the first judge said of it."""
REFUSED = 1
"""An attempt that the second judge refuses, once the first found it 2.5 times as fast; the fourth is its twin."""


def write_run(folder, untold):
    """A problem of a tree, one of a definition, and one on which nothing stands in the end.

    `untold`: its writer was killed before the log said which attempt was the best after the second verdicts.
    """
    tree, traces = tree_problems(folder.parent / "tree"), trace_problem(folder.parent / "traces")
    problems = [tree["level1/1"], traces, problem("refused")]
    with RunLog.create(folder, problems, setting()) as log:
        for one in problems[:2]:
            write_differing(Writer(log, one.name, random.Random(0)), one.name, untold)
        writer = Writer(log, "refused", random.Random(0))
        writer.attempt(passed(2.0, spread=0.0))
        writer.put(Confirmed(problem="refused", attempt=1, verdict=failed()))
        writer.stop()
    return folder


def write_differing(writer, name, untold):
    twin = source_of(REFUSED, random.Random(1))
    writer.attempt(passed(2.5, spread=0.0), source=twin)
    writer.attempt(passed(LUCKY, spread=0.0))
    writer.attempt(passed(1.1, spread=0.0))
    writer.attempt(passed(2.5, spread=0.0), source=twin, same_as=REFUSED)
    writer.attempt(failed())
    writer.put(Confirmed(problem=name, attempt=ATTEMPT, verdict=passed(SPEEDUP, spread=0.0)))
    writer.put(Kept(problem=name, attempt=REFUSED, speedup=2.5, previous=ATTEMPT))
    writer.put(Confirmed(problem=name, attempt=REFUSED, verdict=failed()))
    if not untold:
        writer.put(Kept(problem=name, attempt=ATTEMPT, speedup=SPEEDUP, previous=REFUSED))
    writer.stop()


class Told:
    """One problem of the run, as each part tells it: attempt and speedup, None for what it leaves out."""

    def __init__(self, run, name, folder):
        self.run, self.name, self.folder = run, name, folder
        with RunLog.open(run) as log:
            self.events = list(log.events())
            self.model = RunModel(log)
            self.index = next(one for one in self.model.index()["problems"] if one["name"] == name)
            self.details = [self.model.detail(name, one["n"]) for one in self.index["attempts"]]
            self.picture = picture(log.header, self.model.views)
            self.views = [fold(one, self.events) for one in log.header.problems]
            write_best(log, name)
        self.outcomes = [one for one in outcomes_of(run) if one.problem.name == name]
        self.numbers = {one.sample.candidate.source: one.facts["attempt"] for one in reversed(self.outcomes)}

    def view(self):
        best = next(view for view in self.views if view.problem == self.name).best
        return (best.number, best.speedup) if best else None

    def summary(self):
        row = next(row for row in summary_rows(self.views, self.run) if row["problem"] == self.name)
        return (row["best_attempt"], row["speedup"]) if row["best_attempt"] else None

    def table(self):
        return None, speedup_in(self._line(shown(summary_table(self.views))))

    def progress(self):
        progress = Progress(tuple(view.problem for view in self.views), Console(file=io.StringIO()))
        for event in self.events:
            progress.event(event)
        return None, speedup_in(self._line(shown(progress._table())))

    def tree(self):
        branch = next(one for one in run_tree("run", self.model.views).children if self.name in str(one.label))
        starred = [str(leaf.label) for leaf in branch.children if str(leaf.label).endswith("*")]
        return (int(starred[0].split()[0]), speedup_in(starred[0])) if starred else None

    def inspector(self):
        return (self.index["best"], self.index["speedups"]["best"]) if self.index["best"] else None

    def inspected_attempt(self):
        number = self.index["best"]
        return (number, self.details[number - 1]["speedup"]) if number else None

    def fastest_of_the_attempts(self):
        right = [one for one in self.index["attempts"] if one["speedup"] is not None]
        best = max(right, key=lambda one: one["speedup"], default=None)
        return (best["n"], best["speedup"]) if best else None

    def drawn(self):
        names = re.findall(r'class="name"[^>]*>([^<]+)', self.picture)
        row = re.split(r'<text[^>]*class="name"', self.picture)[1:][names.index(self.name)]
        best = re.search(r"<text[^>]*>(\d+\.\d+) x \[", row)
        return None, float(best[1]) if best else None

    def facts(self):
        found = next(one for one in run_summary(self.run).problems if one.problem == self.name).best
        return (int(found.attempt), found.measured.speedup) if found else None

    def board(self):
        (board,) = boards([run_summary(self.run)], "h1")
        cell = next(cell for cell in board.rows[0].cells if cell.problem == self.name)
        return (int(cell.attempt), cell.published.speedup) if cell.published else None

    def diff(self):
        facts = run_summary(self.run)
        return None, next(one for one in compare_runs(facts, facts).pairs if one.problem == self.name).second

    def kept_folder(self):
        return self._read(self.run / "best" / self.name)

    def kept_readme(self):
        return self._readme(self.run / "best" / self.name, r"speedup against eager: ([\d.]+) ")

    def exported(self):
        samples.write_best(self.folder, self.outcomes)
        return self._read(self.folder / self.name)

    def exported_readme(self):
        samples.write_best(self.folder, self.outcomes)
        return self._readme(self.folder / self.name, r"speedup against eager: ([\d.]+) ")

    def rows(self):
        right = [row for row in map(samples.row_of, self.outcomes) if row["outcome"] == "passed"]
        best = max(right, key=lambda row: row["speedup"], default=None)
        return (best["attempt"], best["speedup"]) if best else None

    def benched(self):
        """KernelBench's results, where the problem has a place in them."""
        fitting, _ = split(self.outcomes)
        found = [one for level in fitting.values() for results in eval_results(level).values() for one in results]
        right = [one for one in found if one.correctness]
        best = max(right, key=lambda one: one.metadata["kernelwright"]["speedup"], default=None)
        return (best.sample_id + 1, best.metadata["kernelwright"]["speedup"]) if best else None

    def submitted(self):
        found, _ = kernelbench.submission_of(self.outcomes, kernelbench.Metadata())
        sources = list(found.kernels.values())
        return (self.numbers[sources[0]], None) if sources else None

    def traced(self):
        """Traces of FlashInfer, where the problem has a definition."""
        if self.outcomes[0].problem.origin is None or "workload" not in self.outcomes[0].problem.origin.details:
            return None
        found = [(flashinfer.trace_of(one).evaluation["performance"], one) for one in self.outcomes]
        right = ((told, one) for told, one in found if told)
        performance, best = max(right, key=lambda pair: pair[0]["speedup_factor"])
        source = flashinfer.solution_of(best, "flashinfer", "here").sources[0].content
        return self.numbers[source], performance["speedup_factor"]

    def _line(self, text):
        return next(line for line in text.splitlines() if self.name in line.split())

    def _read(self, folder):
        if not folder.exists():
            return None
        found = json.loads((folder / "verdict.json").read_text())
        assert found["attempt"] == self.numbers[(folder / "candidate.py").read_text()]
        return found["attempt"], found["speedup"]

    def _readme(self, folder, pattern):
        if not folder.exists():
            return None
        text = (folder / "README.md").read_text()
        return int(re.search(r"attempt\s(\d+)", text)[1]), float(re.search(pattern, text)[1])


def speedup_in(text):
    found = re.search(r"(\d+\.\d+) x", text)
    return float(found[1]) if found else None


def shown(*tables, width=200):
    console = Console(width=width, file=io.StringIO())
    for table in tables:
        console.print(table)
    return console.file.getvalue()
