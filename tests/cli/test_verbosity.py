"""Logs: silent unless asked for, on standard error, before a command's name or behind it, and from workers too."""

import logging
import os
import subprocess
import sys

import pytest

from kernelwright.sandbox.logs import OURS, VARIABLE, StandardError, show_logs, show_logs_as_asked

LIST = ("problems", "list", "--family", "norm")


@pytest.fixture
def logger(monkeypatch):
    """The logger above all of ours, as it was before once the test is over."""
    monkeypatch.setenv(VARIABLE, "")
    ours = logging.getLogger(OURS)
    before = list(ours.handlers), ours.level
    yield ours
    ours.handlers, level = before
    ours.setLevel(level)


def test_without_the_option_nothing_is_said_on_standard_error(kernelwright):
    assert kernelwright(*LIST).stderr == ""


@pytest.mark.parametrize("words", [("-v", *LIST), (*LIST, "-v"), (*LIST, "--verbose")])
def test_the_option_stands_before_a_command_or_behind_it(kernelwright, words):
    done = kernelwright(*words)
    assert " INFO " in done.stderr and "kernelwright 0." in done.stderr
    assert done.stdout == kernelwright(*LIST).stdout


def test_a_library_that_nobody_asked_is_silent_even_about_warnings():
    program = "import kernelwright, logging; logging.getLogger('kernelwright.sandbox').warning('a word')"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stderr == ""


def test_a_level_is_told_and_those_below_it_are_not(logger, capsys):
    show_logs("INFO")
    logging.getLogger("kernelwright.sandbox.made").info("heard")
    logging.getLogger("kernelwright.sandbox.made").debug("not heard")
    assert "sandbox.made: heard\n" in (said := capsys.readouterr().err) and "not heard" not in said


def test_a_line_is_told_once_however_often_logs_are_asked_for(logger, capsys):
    show_logs("INFO")
    show_logs("DEBUG")
    logging.getLogger("kernelwright.made").debug("heard")
    assert capsys.readouterr().err.count("heard") == 1


def test_what_a_candidate_said_can_not_command_the_terminal(logger, capsys):
    show_logs("INFO")
    logging.getLogger("kernelwright.made").info("it said %s", "\x1b[2J")
    assert "\x1b" not in capsys.readouterr().err


def test_a_process_that_is_started_then_tells_the_same_level(logger, capsys):
    show_logs("DEBUG")
    assert os.environ[VARIABLE] == "DEBUG"
    logger.handlers.clear()
    show_logs_as_asked()
    assert [type(handler) for handler in logger.handlers] == [StandardError]


def test_a_level_that_is_none_is_no_reason_to_fail(logger, monkeypatch):
    monkeypatch.setenv(VARIABLE, "loud")
    logger.handlers.clear()
    show_logs_as_asked()
    assert logger.handlers == []
