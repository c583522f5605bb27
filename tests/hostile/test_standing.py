"""Workers that stand before their candidate comes know nothing, and serve one candidate alone."""

import secrets
from contextlib import closing
from pathlib import Path

import pytest

from kernelwright.problems import Problem
from kernelwright.sandbox.backends import backend_of
from kernelwright.sandbox.judge.judging import Judge
from kernelwright.sandbox.judge.stages import SpareWorkers, WarmWorkers
from kernelwright.sandbox.verdict.verdicts import Candidate, Passed
from tests.hostile.conftest import SETTINGS

pytestmark = pytest.mark.slow

MARK = secrets.token_hex(16)
REFERENCE = f"""
import torch

PROBLEM_MARK = "{MARK}"

class Model(torch.nn.Module):
    def forward(self, x):
        return x + x

def get_inputs():
    return [torch.randn(64, 64)]

def get_init_inputs():
    return []
"""
PROBLEM = Problem(name="standing", title="", family="test", size="cpu", source=REFERENCE)
LEAVES_WHAT_IT_CAN = f"""
import builtins, os, pathlib, tempfile
import torch

CANDIDATE_MARK = "{MARK}"
found = [str(path) for path in pathlib.Path(tempfile.gettempdir()).parent.rglob("left-*")]
if found or hasattr(builtins, "left"):
    raise RuntimeError(f"another candidate was here: {{found}}")

class ModelNew(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.here = pathlib.Path(os.environ["HOME"])

    def forward(self, x):
        builtins.left = CANDIDATE_MARK
        return 2 * x
"""
ALSO_ON_DISK = LEAVES_WHAT_IT_CAN.replace(
    "        return 2 * x", '        (self.here / "left-by-me").write_text(CANDIDATE_MARK)\n        return 2 * x'
).replace("if found or", "if")


@pytest.fixture
def settings(place):
    return SETTINGS["namespaces" if place.namespaces else "alone"]


def memory_of(pid: int) -> bytes:
    """All that a process can write to."""
    found = []
    with Path(f"/proc/{pid}/maps").open() as table, Path(f"/proc/{pid}/mem").open("rb") as memory:
        for line in table:
            span, rights, *_ = line.split()
            if rights.startswith("rw"):
                start, end = (int(number, 16) for number in span.split("-"))
                memory.seek(start)
                found.append(memory.read(end - start))
    return b"".join(found)


def test_there_is_nothing_in_a_worker_that_stands_of_what_was_judged_before(settings):
    with Judge(PROBLEM, settings) as judge:
        verdict = judge.judge(Candidate(source=ALSO_ON_DISK))
        assert isinstance(verdict, Passed), verdict
        with closing(WarmWorkers(backend_of(settings))) as warm:
            warm.start(2)
            warm.wait_started()
            assert [path for path in warm.folder.path.rglob("*") if not path.is_dir()] == []
            for session in warm.sessions:
                memory = memory_of(session._child.pid)
                assert b"kernelwright_child" in memory
                assert MARK.encode() not in memory
                environment = Path(f"/proc/{session._child.pid}/environ").read_bytes()
                assert MARK.encode() not in environment


def test_workers_that_stood_serve_one_candidate_and_end_with_it(settings):
    with closing(SpareWorkers(backend_of(settings))) as spare, Judge(PROBLEM, settings) as judge:
        judge.spare, folders = spare, set()
        for source in (ALSO_ON_DISK, LEAVES_WHAT_IT_CAN):
            spare.make()
            warm = spare.take()
            assert warm is not None
            spare._workers = warm
            children, folder = [session._child for session in warm.sessions], warm.folder.path
            verdict = judge.judge(Candidate(source=source))
            assert isinstance(verdict, Passed), verdict
            assert not folder.exists() and folder not in folders
            assert all(not Path(f"/proc/{child.pid}").exists() for child in children)
            folders.add(folder)


def test_what_stands_for_nobody_ends_with_its_judge(settings):
    spare = SpareWorkers(backend_of(settings))
    spare.make()
    warm = spare.take()
    spare._workers = warm
    children, folder = [session._child for session in warm.sessions], warm.folder.path
    spare.close()
    assert not folder.exists()
    assert all(not Path(f"/proc/{child.pid}").exists() for child in children)
    spare.make()
    assert spare.take() is None
