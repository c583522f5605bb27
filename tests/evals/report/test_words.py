"""What a run's stored text brings to a terminal: an older run may hold what a judge of today would not let in."""

import io
from datetime import UTC, datetime

import pytest
from rich.console import Console

from kernelwright.agent.log.events import Event, Stopped
from kernelwright.agent.log.run_log import RunLog
from kernelwright.evals.inspector.model import RunModel
from kernelwright.evals.report import Progress, attempt_words
from kernelwright.terminal import fit_for
from tests.support.runs import made_run

HOSTILE = "\x1b[2J\x1b[32mpassed: 99.00 x\x07"


@pytest.fixture
def shown():
    return io.StringIO()


def test_the_lines_of_a_run_hold_no_control_sequences(shown):
    console = Console(file=shown, width=200)
    event = Event(seq=1, time=datetime(2026, 1, 1, tzinfo=UTC), body=Stopped(problem="relu", reason=HOSTILE))
    Progress(("relu",), console).event(event)
    assert r"done, \x1b[2J\x1b[32mpassed: 99.00 x\x07" in shown.getvalue()
    assert "\x1b" not in shown.getvalue()


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
