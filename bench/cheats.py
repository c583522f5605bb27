"""Cheats and honest candidates before an evaluator of the usual kind, and before our judge: the same corpus, one run.

The usual evaluator (`usual_evaluator.py`) runs in one of our jails, since some candidates would otherwise do harm.
"""

import json
import os
import socket
import subprocess
from collections import defaultdict
from pathlib import Path

from bench.measuring import Report
from kernelwright.sandbox.jail.layers import jail_for
from kernelwright.sandbox.judge.judging import Judge
from kernelwright.sandbox.verdict.settings import JudgeSettings
from kernelwright.sandbox.verdict.verdicts import Candidate, Failed
from kernelwright.sandbox.workfolder import WorkFolder
from tests.honest.test_honest import HONEST
from tests.hostile.cheats.corpus import CHEATS
from tests.hostile.cheats.problems import CORPUS, posed

USUAL = Path(__file__).with_name("usual_evaluator.py")
START = (
    "import site, sys, runpy; site.main(); sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')"
)
WIDTH = 62


def run() -> Report:
    """Cheats and honest candidates before a usual evaluator and before our judge."""
    rows = [(name, True, cheat.problem, cheat.candidate) for name, cheat in CHEATS.items()]
    rows += [(name, False, honest.problem, honest.candidate) for name, honest in HONEST.items()]
    asked = [(problem, candidate) for _, _, problem, candidate in rows]
    usual, ours = _usual(asked), _ours(asked)
    lines = [f"  {'candidate':{WIDTH}}  {'usual evaluator':20}  our judge"]
    lines += [f"  {row[0][:WIDTH]:{WIDTH}}  {usual[i]:20}  {ours[i]}" for i, row in enumerate(rows)]
    for is_cheat, words in ((True, "cheats accepted"), (False, "honest candidates refused")):
        same = [i for i, row in enumerate(rows) if row[1] == is_cheat]
        counts = [sum(said[i].startswith("accepted") == is_cheat for i in same) for said in (usual, ours)]
        lines.append(f"  {words}: usual evaluator {counts[0]} of {len(same)}, our judge {counts[1]} of {len(same)}")
    return Report("\n".join(lines), all((ours[i] == "accepted") != row[1] for i, row in enumerate(rows)))


def _ours(asked: list[tuple[str, Candidate]]) -> list[str]:
    by_problem = defaultdict(list)
    for index, (problem, candidate) in enumerate(asked):
        by_problem[problem].append((index, candidate))
    said = ["accepted"] * len(asked)
    for problem, candidates in by_problem.items():
        with Judge(posed(problem).problem, CORPUS) as judge:
            for index, candidate in candidates:
                verdict = judge.judge(candidate)
                if isinstance(verdict, Failed):
                    said[index] = f"{verdict.stage}: {verdict.reason.splitlines()[0][:90]}"
    return said


def _usual(asked: list[tuple[str, Candidate]]) -> list[str]:
    folder = WorkFolder()
    try:
        pairs = [{"problem": posed(name).problem.source, "candidate": candidate.source} for name, candidate in asked]
        files = folder.write(USUAL.name, USUAL.read_text()), folder.write("corpus.json", json.dumps(pairs))
        verdicts = [json.loads(line) for line in _jailed([str(path) for path in files], folder, CORPUS)]
    finally:
        folder.close()
    if len(verdicts) != len(asked):
        raise RuntimeError(f"the usual evaluator gave {len(verdicts)} answers to {len(asked)} candidates")
    times = [f" ({one['speedup']:.2f}x)" if one["speedup"] else "" for one in verdicts]
    return [f"accepted{time}" if one["correct"] else "refused" for one, time in zip(verdicts, times, strict=True)]


def _jailed(command: list[str], folder: WorkFolder, settings: JudgeSettings) -> list[str]:
    jail = jail_for("builder", folder, settings)
    lifeline, held = os.pipe()
    output, status = os.pipe()
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
        for fd in (lifeline, held, output, status):
            os.close(fd)
        ours.close()
