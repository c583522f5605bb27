"""Answers in TileLang: a jailed builder makes their kernels for Hopper without a device, and keeps them."""

import shutil

import pytest

from bench.recorded import recorded_source
from kernelwright.agent.providers.kinds.recorded import recorded_targets
from kernelwright.problems import catalog_names
from kernelwright.prompts.targets import EXAMPLES
from kernelwright.sandbox.calls.sessions import Refused, Session
from kernelwright.sandbox.machine.identity import package_version
from kernelwright.sandbox.machine.workfolder import WorkFolder
from kernelwright.sandbox.verdict.settings import Settings
from tests.gpu.languages import HONEST, HOSTILE

pytestmark = [
    pytest.mark.skipif(package_version("tilelang") is None, reason="needs the package tilelang"),
    pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc, the compiler of the CUDA toolkit, on PATH"),
]
FOR_HOPPER = """import os
os.environ["TILELANG_DEFAULT_TARGET"] = '{"kind": "cuda", "arch": "sm_90a"}'
"""
ARGUMENTS = {
    "activation_chain": (-0.25, 3.0, 0.8, -0.3),
    "gelu_bias_residual": (2048,),
    "rms_norm": (1024, 1e-5),
    "softmax_rows": (),
}
RECORDED = [name for name in catalog_names() if "tilelang" in recorded_targets(name)]


def constructed(source, *arguments, before=FOR_HOPPER):
    """How many device programs lie in the folder once the candidate was constructed, and what the builder said."""
    folder = WorkFolder()
    made = f"\nModelNew(*{arguments!r})\nclass Made: pass\n"
    try:
        with Session("builder", folder, Settings()) as session:
            session.greet()
            message = {"op": "build", "entry": "Made", "built": str(folder.path / "build"), "arguments": {"l": []}}
            text, said = folder.write("candidate.py", before + source + made), ""
            try:
                session.ask(message | {"source": str(text), "threads": 1, "cores": [0]}, 300)
            except Refused as error:
                said = f"{error.reason}\n{error.log}"
        return len(list(folder.path.rglob("*.cubin"))), said
    finally:
        folder.close()


@pytest.mark.slow
def test_the_example_compiles_in_the_jail():
    assert constructed((EXAMPLES / "tilelang" / "answer.py").read_text(), 1000) == (1, "")


@pytest.mark.slow
def test_without_a_device_one_line_says_so():
    _, said = constructed((EXAMPLES / "tilelang" / "answer.py").read_text(), 1000, before="")
    assert "available target" in said.splitlines()[0]


@pytest.mark.long
@pytest.mark.parametrize("problem", RECORDED)
def test_a_recorded_answer_compiles_in_the_jail(problem):
    assert constructed(recorded_source(problem, "tilelang"), *ARGUMENTS[problem]) == (1, "")


@pytest.mark.long
@pytest.mark.parametrize("told", [*HONEST["tilelang"].values(), *HOSTILE["tilelang"].values()])
def test_a_candidate_of_the_corpora_compiles_in_the_jail(told):
    count, said = constructed(told.source)
    assert count and not said
