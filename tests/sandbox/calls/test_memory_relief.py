"""When device memory runs short: who keeps some is asked in turn, and one that fails keeps nobody else from it."""

import logging

import pytest
import torch

from kernelwright.sandbox.calls.gpu_buffers import register, with_relief
from kernelwright.sandbox.verdict.errors import BrokenProblem


@pytest.fixture
def asked():
    """Givers by name, of which the second has just ended; who was asked is noted."""
    found = []

    def ended():
        found.append("ended")
        raise BrokenProblem("it has gone")

    entries = [register(giver, 0) for giver in (lambda: found.append("first"), ended, lambda: found.append("last"))]
    entries.append(register(lambda: found.append("of another device"), 1))
    yield found
    for forget in entries:
        forget()


def failing(times, error):
    left = [error] * times

    def work():
        if left:
            raise left.pop()
        return "done"

    return work


def test_all_of_the_device_are_asked_although_one_has_ended(asked):
    assert with_relief(failing(1, torch.OutOfMemoryError("none left"))) == "done"
    assert asked == ["first", "ended", "last"]


def test_what_fails_again_is_told(asked):
    with pytest.raises(torch.OutOfMemoryError):
        with_relief(failing(2, torch.OutOfMemoryError("none left")))


def test_another_error_is_no_reason_to_ask(asked):
    with pytest.raises(ValueError, match="other"):
        with_relief(failing(1, ValueError("other")))
    assert not asked


def test_nobody_is_asked_where_there_is_enough(asked):
    assert with_relief(lambda: 7) == 7
    assert not asked


def test_what_came_of_asking_is_logged(asked, caplog):
    caplog.set_level(logging.INFO, "kernelwright.sandbox.calls")
    with_relief(failing(1, torch.OutOfMemoryError("none left")))
    refused, came = caplog.messages
    assert "it has gone" in refused
    assert "device 0" in came and "3 sessions" in came
