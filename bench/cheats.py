"""Cheats and honest candidates before an evaluator of the usual kind, and before our judge.

The usual evaluator (`same_process.py`) runs in one of our jails, since some candidates would otherwise do harm.
"""

import json
import os
import socket
import subprocess
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from kernelwright.sandbox.jail.layers import jail_for
from kernelwright.sandbox.judge.judging import Judge
from kernelwright.sandbox.verdict.settings import Settings
from kernelwright.sandbox.verdict.verdicts import Candidate, Failed
from kernelwright.sandbox.workfolder import WorkFolder
from tests.honest.test_honest import HONEST
from tests.hostile.cheats.corpus import CHEATS
from tests.hostile.cheats.problems import CORPUS, posed

USUAL = Path(__file__).with_name("same_process.py")
START = (
    "import site, sys, runpy; site.main(); sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')"
)
WIDTH = 62


class Row(NamedTuple):
    """One candidate before both."""

    name: str
    is_cheat: bool
    usual: str
    ours: str

    def __str__(self) -> str:
        return f"  {self.name[:WIDTH]:{WIDTH}}  {self.usual:20}  {self.ours}"


class Corpus(NamedTuple):
    """All rows; ours promises that no cheat passes and no honest candidate fails."""

    rows: tuple[Row, ...]

    @property
    def holds(self) -> bool:
        """Whether the promise is kept."""
        return all((row.ours == "accepted") != row.is_cheat for row in self.rows)

    def __str__(self) -> str:
        lines = [f"  {'candidate':{WIDTH}}  {'usual evaluator':20}  our judge", *map(str, self.rows)]
        for is_cheat, words in ((True, "cheats accepted"), (False, "honest candidates refused")):
            rows = [row for row in self.rows if row.is_cheat == is_cheat]
            counts = [sum(said.startswith("accepted") == is_cheat for said in column) for column in _columns(rows)]
            lines.append(f"  {words}: usual evaluator {counts[0]} of {len(rows)}, our judge {counts[1]} of {len(rows)}")
        return "\n".join(lines)


def _columns(rows: list[Row]) -> tuple[list[str], list[str]]:
    return [row.usual for row in rows], [row.ours for row in rows]


def run() -> Corpus:
    """The same corpus before both, in one run."""
    asked = [(name, True, cheat.problem, cheat.candidate) for name, cheat in CHEATS.items()]
    asked += [(name, False, honest.problem, honest.candidate) for name, honest in HONEST.items()]
    usual = _usual([(problem, candidate) for _, _, problem, candidate in asked])
    ours = _ours([(problem, candidate) for _, _, problem, candidate in asked])
    return Corpus(tuple(Row(name, is_cheat, next(usual), ours[i]) for i, (name, is_cheat, _, _) in enumerate(asked)))


def _ours(asked: list[tuple[str, Candidate]]) -> list[str]:
    by_problem = defaultdict(list)
    for index, (problem, candidate) in enumerate(asked):
        by_problem[problem].append((index, candidate))
    said = [""] * len(asked)
    for problem, candidates in by_problem.items():
        with Judge(posed(problem).problem, CORPUS) as judge:
            for index, candidate in candidates:
                verdict = judge.judge(candidate)
                said[index] = "accepted"
                if isinstance(verdict, Failed):
                    said[index] = f"{verdict.stage}: {verdict.reason.splitlines()[0][:90]}"
    return said


def _usual(asked: list[tuple[str, Candidate]]) -> Iterator[str]:
    """What the usual evaluator says, in the same order."""
    folder = WorkFolder()
    try:
        pairs = [{"problem": posed(name).problem.source, "candidate": candidate.source} for name, candidate in asked]
        command = [
            str(folder.write(USUAL.name, USUAL.read_text())),
            str(folder.write("corpus.json", json.dumps(pairs))),
        ]
        lines = _jailed(command, folder, CORPUS)
    finally:
        folder.close()
    if len(lines) != len(asked):
        raise RuntimeError(f"the usual evaluator gave {len(lines)} answers to {len(asked)} candidates")
    for line in lines:
        verdict = json.loads(line)
        speedup = verdict["speedup"]
        yield f"accepted{f' ({speedup:.2f}x)' if speedup else ''}" if verdict["correct"] else "refused"


def _jailed(command: list[str], folder: WorkFolder, settings: Settings) -> list[str]:
    jail = jail_for("builder", folder, settings)
    lifeline, held = os.pipe()
    told, status = os.pipe()
    ours, theirs = socket.socketpair()
    try:
        inner = ["-S", "-c", START, *command, str(theirs.fileno())]
        fds = (lifeline, status, *jail.fds, theirs.fileno())
        environment = folder.environment(settings.threads)
        with subprocess.Popen(jail.command(inner, lifeline, status), cwd="/", env=environment, pass_fds=fds):
            theirs.close()
            with ours.makefile(encoding="utf-8") as file:
                return file.read().splitlines()
    finally:
        for fd in (lifeline, held, told, status):
            os.close(fd)
        ours.close()
        jail.close()
