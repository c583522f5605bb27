"""A real small run as one of the benchmark is made: a tree of its kind, task files, answers that come later, verdicts.

The problems are those of our catalog, under a benchmark's addresses; the answers are the ones that are recorded for
them.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

from bench.results.keeping import Chosen, digest_of
from kernelwright.agent.providers.recorded import session_folder
from kernelwright.problems import load_problem
from tests.support.commands import run_with

ROOT = Path(__file__).parents[3]
PROBLEMS = {"level1/5": "max_rows", "level1/15": "sum_rows", "level2/5": "min_max"}
DTYPES = {"level1/5": ("float32",), "level1/15": ("float32", "bfloat16"), "level2/5": ("float32",)}
ANSWERS = {
    "max_rows": ("01-propose.md", "02-improve.md"),
    "sum_rows": (None, None),
    "min_max": ("01-propose.md", "02-repair.md"),
}
"""By problem, the recorded answers that it gets; None is a refusal."""
SETTINGS = """\
source = "https://example.org/KernelBench"
commit = "0000000"
rule = "three problems for a test"
options = [
    "--target cpp", "--provider files", "--strategy refine", "--attempts 2",
    "--set drafts=1", "--set tune=0", "--set share=false", "--set confirm=1", "--set learn=false",
]

"""


def table(problems):
    """The problems as TOML, a line each."""
    lines = [
        f'"{address}" = {{ file = "{one.file}", sha256 = "{one.sha256}", dtypes = {json.dumps(one.dtypes)} }}'
        for address, one in problems.items()
    ]
    return "\n".join(["[problems]", *lines, ""])


class Walk:
    """The folders of a walk below one root, and the commands that are run in it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.tree, self.results, self.docs, self.runs = (
            root / name for name in ("KernelBench", "results", "docs", "runs")
        )

    def lay_out(self) -> None:
        self.results.mkdir(parents=True)
        problems = {}
        for address, name in PROBLEMS.items():
            level, _, number = address.partition("/")
            path = self.tree / level / f"{number}_{name}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(load_problem(name).source)
            problems[address] = Chosen(file=path.name, sha256=digest_of(path), dtypes=DTYPES[address])
        (self.results / "selection.toml").write_text(SETTINGS + table(problems))

    def bench(
        self, *words: object, folder: Path | None = None, **surroundings: str
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "bench.results", *map(str, words), "--folder", folder or self.results],
            capture_output=True, text=True, cwd=self.root, timeout=600, check=False,
            env=os.environ | {"PYTHONPATH": str(ROOT)} | surroundings,
        )  # fmt: skip

    def kernelwright(self, *words: object) -> subprocess.CompletedProcess[str]:
        return run_with(self.root, *words, timeout=600)

    def answer(self, run: Path, most: int = 9) -> int:
        """Write answers to open tasks of a run, as many at most; how many were written."""
        tasks = sorted((run / "tasks").glob("*.task.md"))
        open_ones = [task for task in tasks if not _answer_to(task).exists()][:most]
        for task in open_ones:
            name = _problem_of(task)
            file = ANSWERS[name]["ttempt 1" in task.read_text()]
            words = "I can not help with that." if file is None else (session_folder(name, "cpp") / file).read_text()
            _answer_to(task).write_text(words)
        return len(open_ones)


def _problem_of(task: Path) -> str:
    return next(name for name in ANSWERS if load_problem(name).source.strip() in task.read_text())


def _answer_to(task: Path) -> Path:
    return task.with_name(task.name.replace(".task.md", ".answer.md"))
