"""Answers in CUDA C++ with the headers of CUTLASS: jailed builders find these, and nvcc compiles them for Hopper."""

import shutil

import pytest

from bench.measuring import recorded_source
from kernelwright.agent.providers.recorded import recorded_targets
from kernelwright.problems import catalog_names
from kernelwright.prompts.rendering import EXAMPLES
from kernelwright.sandbox.build import read_record
from kernelwright.sandbox.calls.sessions import Refused, Session
from kernelwright.sandbox.machine import package_headers
from kernelwright.sandbox.toolchain import toolchain
from kernelwright.sandbox.verdict.settings import Settings
from kernelwright.sandbox.workfolder import WorkFolder
from tests.gpu.languages import HONEST, HOSTILE

pytestmark = [
    pytest.mark.skipif(package_headers("cutlass") is None, reason="needs the package nvidia-cutlass"),
    pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc, the compiler of the CUDA toolkit, on PATH"),
]
RECORDED = [name for name in catalog_names() if "cutlass" in recorded_targets(name)]
HOME = 'from torch.utils import cpp_extension\ncpp_extension.CUDA_HOME = cpp_extension.CUDA_HOME or "/usr/local/cuda"\n'
"""A torch for processors looks for no toolkit; it compiles all the same, and can not link."""


def compiled(source):
    """Whether the jailed builder's nvcc compiled the source's kernels for Hopper, and what it said."""
    folder, plan = WorkFolder(), toolchain().plan(2**33, cuda_architectures="9.0")
    try:
        with Session("builder", folder, Settings()) as session:
            session.greet()
            message = {"op": "build", "entry": "ModelNew", "built": str(folder.path / "build"), "arguments": {"l": []}}
            text = folder.write("candidate.py", HOME + source)
            said = ""
            try:
                session.ask(message | {"source": str(text), "shortcuts": plan, "threads": 1, "cores": [0]}, 300)
            except Refused as error:
                said = error.log
        runs = {run.file: run.compiled for run in read_record(folder.path).compilations}
        return runs.get("cuda.cu"), said
    finally:
        folder.close()


@pytest.mark.slow
def test_the_example_compiles_in_the_jail_without_an_include_folder_of_its_own():
    done, said = compiled((EXAMPLES / "cutlass.py").read_text())
    assert done, said


@pytest.mark.long
@pytest.mark.parametrize("problem", RECORDED)
def test_a_recorded_answer_compiles_in_the_jail(problem):
    done, said = compiled(recorded_source(problem, "cutlass"))
    assert done, said


@pytest.mark.long
@pytest.mark.parametrize("told", [*HONEST["cutlass"].values(), *HOSTILE["cutlass"].values()])
def test_a_candidate_of_the_corpora_compiles_in_the_jail(told):
    done, said = compiled(told.source)
    assert done, said
