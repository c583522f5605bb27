"""Memory that the judge lends is mapped and let go again, however often a child is lent some."""

import contextlib
import os
from pathlib import Path

import pytest
import torch

from kernelwright.sandbox.backends import backend_of
from kernelwright.sandbox.calls.sessions import Session
from kernelwright.sandbox.tensors import RawTensor, SharedMemory
from kernelwright.sandbox.verdict.settings import JudgeSettings
from kernelwright.sandbox.workfolder import WorkFolder
from kernelwright_child.models import shared_tensors
from kernelwright_child.wire import WireError, failure, refuse_unplain
from tests.support.problems import tiny_problem

SETTINGS = JudgeSettings(jail="off", threads=1)
COUNTING = """
import torch
import torch.nn as nn

class Model(nn.Module):
    def __init__(self, columns):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(columns))
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x):
        self.calls += 1
        return x * self.weight

def get_inputs():
    return [torch.randn(4, 8)]

def get_init_inputs():
    return [8]
"""
PROBLEM = tiny_problem(COUNTING, name="counting", title="Rows times a weight")


@pytest.fixture
def reference():
    with contextlib.closing(backend_of(SETTINGS).reference(PROBLEM)) as reference:
        yield reference


@pytest.fixture
def worker(reference):
    """A candidate's worker that is ready to be called."""
    folder = WorkFolder()
    with contextlib.closing(folder), Session("worker", folder, SETTINGS) as session:
        session.greet()
        load = {
            "op": "load",
            "source": str(folder.write("candidate.py", COUNTING)),
            "entry": "Model",
            "built": str(folder.path / "build"),
            "threads": 1,
            "cores": sorted(os.sched_getaffinity(0)),
            "arguments": reference.arguments.tree,
        }
        session.ask(load, SETTINGS.start_timeout_s, reference.arguments)
        reference.prepare_worker(session)
        yield session


def open_files(session):
    """What each descriptor of a child leads to."""
    return sorted(str(entry.readlink()) for entry in Path(f"/proc/{session._child.pid}/fd").iterdir())


def test_the_tensors_share_the_pages_and_the_descriptor_is_closed():
    lent = SharedMemory([RawTensor.of(torch.arange(4.0)), RawTensor.of(torch.ones(2, 3))])
    given = os.dup(lent.fd)
    first, second = shared_tensors(given, lent.specs)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(given)
    lent.write([RawTensor.of(torch.full((4,), 7.0)), RawTensor.of(torch.zeros(2, 3))])
    assert first.tolist() == [7.0] * 4 and not second.any()
    lent.close()


def test_a_descriptor_that_can_not_be_mapped_is_closed_too():
    empty = os.memfd_create("empty")
    with pytest.raises(ValueError, match="empty file"):
        shared_tensors(empty, [])
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(empty)


@pytest.mark.slow
def test_however_often_a_reference_takes_weights_it_holds_what_inputs_appear_in_alone(reference):
    for _ in range(2):
        with reference.reweighted():
            pass
    assert [file for file in open_files(reference._session) if "lent" in file] == ["/memfd:lent (deleted)"]


@pytest.mark.slow
def test_following_the_state_of_one_more_candidate_leaves_no_files_open(reference, worker):
    values = reference.draw()
    reference.state_after(worker, values)
    before = open_files(reference._session), open_files(worker)
    for _ in range(3):
        theirs, own = reference.state_after(worker, values)
        assert theirs.tensors[0].tensor().tolist() == own.tensors[0].tensor().tolist() == [1.0]
    assert (open_files(reference._session), open_files(worker)) == before


class OwnError(Exception):
    """An exception of a candidate's."""


def told(error):
    try:
        raise error
    except Exception as caught:
        return failure(caught)


def test_an_exception_of_ours_is_told_without_the_name_of_its_class():
    with pytest.raises(WireError) as caught:
        refuse_unplain(torch.zeros(1), "cuda")
    found = failure(caught.value)
    assert "a tensor on cpu" in found["error"] and "on cuda" in found["error"] and "WireError" not in found["error"]
    assert found["log"].splitlines()[-1] == found["error"]


def test_exceptions_of_python_and_of_torch_keep_their_names():
    assert told(KeyError("size"))["error"] == "KeyError: 'size'"
    assert told(torch.OutOfMemoryError("CUDA out"))["error"] == "torch.OutOfMemoryError: CUDA out"
    assert told(OwnError("it is wrong"))["error"].endswith("OwnError: it is wrong")
