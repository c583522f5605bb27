"""A terminal shows each problem of a run with its best, or why it has none; stored text cannot control it."""

import io
import random
from datetime import UTC, datetime

import pytest
from rich.console import Console

from kernelwright.agent.log.events import Event, Resumed, Stopped
from kernelwright.agent.log.store import RunLog
from kernelwright.agent.log.view import fold
from kernelwright.evals.inspector.pages import RunModel
from kernelwright.evals.plots import picture
from kernelwright.evals.report import Progress, attempt_words, line_of, summary_rows, summary_table
from kernelwright.evals.runs import LeftOut
from kernelwright.terminal import fit_for
from tests.support.runs import Writer, failed, made_run, passed, problem, setting
from tests.support.search import PROBLEM, SETTING
from tests.support.second_verdicts import shown

LONGEST = "conv_transpose2d_grouped_asymmetric"


@pytest.fixture
def views(tmp_path):
    names = (LONGEST, "rms_norm")
    with RunLog.create(tmp_path / "run", [problem(name) for name in names], setting()) as log:
        for name, verdicts in zip(names, ([failed("build"), passed(12.5), passed(8.0)], [None]), strict=True):
            writer = Writer(log, name, random.Random(0))
            for verdict in verdicts:
                writer.attempt(verdict)
            writer.stop()
        return [fold(name, log.events(name)) for name in names]


def test_a_terminal_of_80_columns_shows_each_problem_in_one_line(views):
    first, second = (line.split(maxsplit=4) for line in shown(summary_table(views), width=80).splitlines()[3:5])
    assert first[:4] == [LONGEST, "2", "of", "3"]
    assert first[4].startswith("12.") and first[4].rstrip().endswith("]")
    assert [*second[:4], second[4].rstrip()] == ["rms_norm", "0", "of", "1", "1 no candidate (refusal)"]


def test_for_programs_the_row_has_the_path_of_the_kept_kernel(views, tmp_path):
    rows = summary_rows(views, tmp_path)
    assert [row["kept"] for row in rows] == [str(tmp_path / "best" / LONGEST / "candidate.py"), None]


HOSTILE = "\x1b[2J\x1b[32mpassed: 99.00 x\x07"


def test_the_lines_of_a_run_hold_no_control_sequences():
    file = io.StringIO()
    console = Console(file=file, width=200)
    event = Event(seq=1, time=datetime(2026, 1, 1, tzinfo=UTC), body=Stopped(problem="relu", reason=HOSTILE))
    Progress(("relu",), console).event(event)
    assert r"done, \x1b[2J\x1b[32mpassed: 99.00 x\x07" in file.getvalue()
    assert "\x1b" not in file.getvalue()


def test_a_run_as_a_tree_holds_no_control_sequences(tmp_path):
    made_run(tmp_path / "run", problems=1, attempts=2, seed=1)
    with RunLog.open(tmp_path / "run") as log:
        attempt = RunModel(log).views["problem_0"].attempts[0]
    told = attempt.model_copy(update={"ask": attempt.ask.model_copy(update={"idea": HOSTILE})})
    words = attempt_words(told, best=False).plain
    assert r"\x1b[2J" in words
    assert "\x1b" not in words


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_source_goes_to_a_terminal_cleaned_and_to_a_file_as_it_is():
    source = f"class ModelNew: {HOSTILE!s}\n\tpass\n"
    assert fit_for(io.StringIO(), source) == source
    assert "\x1b" not in fit_for(Terminal(), source)
    assert fit_for(Terminal(), source).endswith("\n\tpass\n")


WHY = "does not run: no [room] \x1b[2J"
TOLD = "not judged: does not run: no [room] \\x1b[2J"
LEFT_OUT = LeftOut(problem="tree::level1/2", why="it has no Model", fault="broken")


@pytest.fixture
def log(tmp_path):
    setting = SETTING.model_copy(update={"config": {"left_out": [LEFT_OUT.model_dump()]}})
    with RunLog.create(tmp_path / "run", [PROBLEM], setting) as log:
        log.append(Stopped(problem=PROBLEM.name, reason=WHY, fault="broken"))
        yield log


def view_of(log):
    return fold(PROBLEM.name, log.events())


def test_the_table_and_the_row_for_programs_say_why_and_what_was_at_fault(log):
    assert TOLD in shown(summary_table([view_of(log)]))
    (row,) = summary_rows([view_of(log)], log.folder)
    assert (row["stopped"], row["fault"], row["speedup"]) == (WHY, "broken", None)


def test_progress_has_a_line(log):
    last = list(log.events())[-1]
    assert line_of(last, view_of(log)) == f"doubled: {TOLD}"
    console = Console(file=io.StringIO(), width=200)
    with Progress((PROBLEM.name,), console) as progress:
        progress.event(last)
    assert TOLD in console.file.getvalue()


def test_the_inspector_and_the_picture_say_why_and_what_was_left_out(log):
    index = RunModel(log).index()
    assert (index["problems"][0]["stopped"], index["problems"][0]["fault"]) == (TOLD, "broken")
    assert index["run"]["left_out"] == [LEFT_OUT.model_dump()]
    assert "not judged" in picture(log.header, RunModel(log).views)


def test_a_search_that_goes_on_is_not_at_fault(log):
    log.append(Resumed(problem=PROBLEM.name))
    assert (view_of(log).stopped, view_of(log).fault) == (None, None)
