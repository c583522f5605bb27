"""Answers in CuTe's Python language: a jailed builder compiles their kernels for Hopper, without a device."""

import pytest
import torch

from bench.recorded import recorded_source
from kernelwright.agent.providers.kinds.recorded import recorded_targets
from kernelwright.problems import catalog_names
from kernelwright.prompts.targets import EXAMPLES
from kernelwright.sandbox.calls.sessions import Refused, Session
from kernelwright.sandbox.machine.identity import package_version
from kernelwright.sandbox.machine.workfolder import WorkFolder
from kernelwright.sandbox.verdict.settings import Settings
from tests.gpu.languages import HONEST, HOSTILE

pytestmark = pytest.mark.skipif(package_version("cute") is None, reason="needs the package nvidia-cutlass-dsl")
FOR_HOPPER = "import os\nos.environ['CUTE_DSL_ARCH'] = 'sm_90a'\n"
ARGUMENTS = {
    "activation_chain": (-0.25, 3.0, 0.8, -0.3),
    "gelu_bias_residual": (2048,),
    "rms_norm": (1024, 1e-5),
    "softmax_rows": (),
}
RECORDED = [name for name in catalog_names() if "cute" in recorded_targets(name)]


def constructed(source, *arguments, then="assert model.run is not None"):
    """What the builder said of a candidate that it constructed, and then did something with; empty if all was well."""
    folder = WorkFolder()
    more = f"\nmodel = ModelNew(*{arguments!r})\n{then}\nclass Made: pass\n"
    try:
        with Session("builder", folder, Settings()) as session:
            session.greet()
            message = {"op": "build", "entry": "Made", "built": str(folder.path / "build"), "arguments": {"l": []}}
            text = folder.write("candidate.py", FOR_HOPPER + source + more)
            try:
                session.ask(message | {"source": str(text), "threads": 1, "cores": [0]}, 300)
            except Refused as error:
                return f"{error.reason}\n{error.log}"
        return ""
    finally:
        folder.close()


@pytest.mark.slow
def test_the_example_compiles_in_the_jail():
    assert constructed((EXAMPLES / "cute" / "answer.py").read_text(), 1000) == ""


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA device")
def test_without_a_device_a_call_says_so():
    matrix = "given(torch.empty(512, 1000))"
    call = f"model.run({matrix}, given(model.scale.detach()), {matrix}, CUstream(0))"
    said = constructed((EXAMPLES / "cute" / "answer.py").read_text(), 1000, then=call)
    assert "cudaErrorInsufficientDriver" in said or "cudaErrorNoDevice" in said


@pytest.mark.long
@pytest.mark.parametrize("problem", RECORDED)
def test_a_recorded_answer_compiles_in_the_jail(problem):
    assert constructed(recorded_source(problem, "cute"), *ARGUMENTS[problem]) == ""


@pytest.mark.long
@pytest.mark.parametrize("told", [*HONEST["cute"].values(), *HOSTILE["cute"].values()])
def test_a_candidate_of_the_corpora_compiles_in_the_jail(told):
    assert constructed(told.source) == ""
