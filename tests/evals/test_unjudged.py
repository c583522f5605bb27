import io

import pytest
from rich.console import Console

from kernelwright.agent.log.events import Resumed, Stopped
from kernelwright.agent.log.run_log import RunLog
from kernelwright.agent.log.view import fold
from kernelwright.evals.inspector.pages import RunModel
from kernelwright.evals.plots import picture
from kernelwright.evals.report import Progress, line_of, summary_rows, summary_table
from kernelwright.evals.runs import LeftOut
from tests.support.search import PROBLEM, SETTING
from tests.support.second_verdicts import shown

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
