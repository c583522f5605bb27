"""Which candidates are judged on a device, and what is said where there is none."""

import pytest

from kernelwright.commands.score import device_of
from kernelwright.evals.score import CandidateFile
from kernelwright.sandbox.machine import require_tools, usual_device
from kernelwright.sandbox.verdict.errors import MachineError
from kernelwright.terminal import UserMistake
from kernelwright_child import driver
from tests.gpu.honest import HONEST

CPP = """
from torch.utils.cpp_extension import load_inline
load_inline(name="x", cpp_sources="void f() {}", functions=["f"])
class ModelNew: pass
"""


@pytest.mark.parametrize("language", ["cuda", "triton"])
@pytest.mark.parametrize("size", ["cpu", "gpu", "file"])
def test_cuda_and_triton_run_on_a_device_whatever_the_size(language, size):
    assert usual_device(language, size) == "cuda"


@pytest.mark.parametrize("size", ["cpu", "gpu", "file"])
def test_cpp_runs_on_the_processor(size):
    assert usual_device("cpp", size) == "cpu"


def test_plain_python_runs_on_a_device_where_there_is_one_and_the_problem_has_its_size():
    assert (usual_device("python", "gpu") == "cuda") is (driver.device_count() > 0)
    assert usual_device("python", "cpu") == "cpu"


@pytest.mark.skipif(driver.device_count() > 0, reason="this machine has a CUDA device")
@pytest.mark.parametrize("language", ["cuda", "triton"])
def test_without_a_device_one_sentence_says_so(language):
    with pytest.raises(MachineError, match=f"candidate in {language} needs a CUDA device"):
        require_tools(language)


def files(folder, **sources):
    for name, source in sources.items():
        (folder / f"{name}.py").write_text(source)
    return [CandidateFile(problem="relu", name=f"{name}.py", path=folder / f"{name}.py") for name in sources]


def test_a_folder_of_triton_candidates_is_scored_on_a_device(tmp_path):
    assert device_of(files(tmp_path, a=HONEST["triton_relu"].source, b="not python ("), None, None) == "cuda"


def test_a_folder_of_candidates_in_cpp_is_scored_on_the_processor(tmp_path):
    assert device_of(files(tmp_path, a=CPP), None, None) == "cpu"


def test_candidates_for_both_can_not_be_scored_together(tmp_path):
    with pytest.raises(UserMistake, match="score them separately"):
        device_of(files(tmp_path, a=CPP, b=HONEST["triton_relu"].source), None, None)


def test_candidates_for_both_are_scored_together_where_the_user_says_on_a_device(tmp_path):
    chosen = files(tmp_path, a=CPP, b=HONEST["triton_relu"].source)
    assert device_of(chosen, None, "cuda", local=False) == "cuda"
    with pytest.raises(UserMistake, match=r"triton.* CUDA device"):
        device_of(chosen, None, "cpu")
