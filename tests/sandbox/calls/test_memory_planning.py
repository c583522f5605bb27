"""Problems that are larger than the machine: told before anything is made, with what they need and what there is."""

from contextlib import closing

import pytest

from kernelwright.sandbox.calls.memory_planning import CERTAIN_BYTES, planned, require_room
from kernelwright.sandbox.gpu import backend_of
from kernelwright.sandbox.verdict.errors import UnsupportedHere
from kernelwright.sandbox.verdict.memory import free_bytes
from kernelwright.sandbox.verdict.settings import Settings
from kernelwright.sandbox.workfolder import WorkFolder
from tests.support.problems import stateless, tiny_problem

pytestmark = pytest.mark.slow

MIB = 2**20


def problem(rows):
    """Inputs of so many times 4 MiB."""
    source = stateless("torch.relu(x)", f"torch.randn({rows}, 1024, 1024)")
    return tiny_problem(source, name=f"relu_of_{rows}", size="file")


@pytest.fixture(scope="module")
def child():
    """A reference's child that has loaded nothing; asks it what a problem takes."""
    settings = Settings()
    with closing(WorkFolder()) as folder, backend_of(settings).open_session("reference", folder) as session:
        session.greet()

        def ask(posed, settings=settings):
            require_room(posed, settings, session, str(folder.write("reference.py", posed.source)))

        ask.plan = lambda posed: planned(posed, session, str(folder.write("reference.py", posed.source)), 60)
        yield ask


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    """No plan of an earlier run is found."""
    monkeypatch.setenv("KERNELWRIGHT_CACHE", str(tmp_path))


def test_inputs_larger_than_the_machine_are_refused_with_both_figures(child):
    rows = free_bytes() // (4 * MIB)
    with pytest.raises(UnsupportedHere, match=f"judging relu_of_{rows} takes.*GiB of inputs.*this machine has"):
        child(problem(rows), Settings(memory_bytes=2**50))


def test_the_whole_reference_is_refused_so_before_it_is_loaded():
    with pytest.raises(UnsupportedHere, match=r"GiB of memory.* may take"):
        backend_of(Settings()).reference(problem(2**20))


def test_a_child_that_is_too_small_is_told_and_a_larger_one_does(child):
    posed = problem(100)  # 400 MiB, and with the result and float64 of both 2.4 GB
    with pytest.raises(UnsupportedHere, match=r"1 GiB;.* --memory"):
        child(posed, Settings(memory_bytes=2**30))
    child(posed, Settings(memory_bytes=3 * 2**30))


def test_a_plan_is_of_the_problem_and_its_dtype_and_is_remembered(child, tmp_path):
    posed = problem(100)
    found = child.plan(posed)
    assert (found.inputs, found.result, found.exact, found.peak) == (400 * MIB, 400 * MIB, 800 * MIB, 400 * MIB)
    assert list(tmp_path.rglob("needs/*.json"))
    assert planned(posed, None, "nobody is asked again", 1) == found
    assert child.plan(posed.model_copy(update={"dtype": "bfloat16"})).inputs == 200 * MIB


def test_small_problems_are_not_planned():
    posed = problem(CERTAIN_BYTES // (4 * MIB) - 1)
    require_room(posed, Settings(memory_bytes=2**30), None, "nobody is asked")
    require_room(posed.model_copy(update={"source": "not Python at all ("}), Settings(), None, "nobody is asked")


def test_a_reference_that_can_not_be_planned_is_let_through(child):
    posed = problem(100)
    looking = posed.model_copy(update={"source": posed.source.replace("relu(x)", "relu(x) * int(x.sum().item())")})
    assert child.plan(looking) is None
    room_for_inputs = Settings(memory_bytes=1400 * MIB)  # so that what the text shows is no reason to refuse it
    with pytest.raises(UnsupportedHere):
        child(posed, room_for_inputs)
    child(looking, room_for_inputs)
