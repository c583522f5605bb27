"""Answers in Helion, without a device: interpreted they compute what they should, and they become Triton's kernels."""

import re
import subprocess
import sys

import pytest
import torch

from bench.measuring import recorded_source
from kernelwright.agent.providers.recorded import recorded_targets
from kernelwright.problems import catalog_names, load_problem
from kernelwright.prompts.rendering import EXAMPLES
from kernelwright.sandbox.calls.sessions import Refused, Session
from kernelwright.sandbox.machine import package_version
from kernelwright.sandbox.verdict.settings import Settings
from kernelwright.sandbox.workfolder import WorkFolder
from tests.gpu.languages import HONEST

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(package_version("helion") is None, reason="needs the package helion"),
]
RECORDED = [name for name in catalog_names() if "helion" in recorded_targets(name)]
CHECK = """
import runpy, sys, helion, torch
torch.manual_seed(0)
reference, candidate = (runpy.run_path(f"{name}.py") for name in ("reference", "candidate"))
given, inputs = reference["get_init_inputs"](), [value[:96] for value in reference["get_inputs"]()]
model, ours = reference["Model"](*given), candidate["ModelNew"](*given)
ours.load_state_dict(model.state_dict())
kernels = [value for value in candidate.values() if isinstance(value, helion.Kernel)]
with torch.no_grad():
    if sys.argv[1] == "interpreted":
        torch.testing.assert_close(ours(*inputs), model(*inputs), rtol=2e-5, atol=2e-6)
    else:
        seen = []
        def code_alone(kernel, *args):
            seen.append(kernel.bind(args).to_triton_code(kernel.configs[0]))
            return args[0]
        helion.Kernel.__call__ = code_alone
        ours(*inputs)
        assert seen and all("@triton.jit" in text for text in seen)
assert kernels
"""


def checked(how, reference, candidate, folder):
    """What a process with a child's environment said that held a candidate against its reference."""
    (folder / "reference.py").write_text(reference)
    (folder / "candidate.py").write_text(candidate)
    work = WorkFolder()
    try:
        told = work.environment(2) | ({"HELION_INTERPRET": "1"} if how == "interpreted" else {})
        done = subprocess.run(
            [sys.executable, "-c", CHECK, how], cwd=folder, env=told, capture_output=True, text=True, check=False
        )
        return done.returncode, done.stderr
    finally:
        work.close()


@pytest.mark.parametrize("how", ["interpreted", "compiled"])
def test_the_example_computes_what_its_reference_computes(how, tmp_path):
    texts = ((EXAMPLES / name).read_text() for name in ("reference.py", "helion.py"))
    code, said = checked(how, *texts, tmp_path)
    assert code == 0, said


def called(before):
    """What a jailed builder said of a call of the example on the processor."""
    folder, source = WorkFolder(), (EXAMPLES / "helion.py").read_text()
    call = "\nx = torch.rand(64, 1000)\nmodel = ModelNew(1000).requires_grad_(False)\ny = model(x)\n"
    right = "torch.testing.assert_close(y, x * model.scale + x.sum(1, keepdim=True))\nclass Made: pass\n"
    try:
        with Session("builder", folder, Settings()) as session:
            session.greet()
            message = {"op": "build", "entry": "Made", "built": str(folder.path / "build"), "arguments": {"l": []}}
            text = folder.write("candidate.py", before + source + call + right)
            try:
                session.ask(message | {"source": str(text), "threads": 1, "cores": [0]}, 300)
            except Refused as error:
                return error.reason
        return ""
    finally:
        folder.close()


def test_the_example_is_right_in_the_jail_where_it_is_interpreted():
    assert called("import os\nos.environ['HELION_INTERPRET'] = '1'\n") == ""


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA device")
def test_without_a_device_a_call_says_what_is_missing():
    assert re.search("No module named 'triton'|active driver|CUDA", called(""))


@pytest.mark.long
@pytest.mark.parametrize("how", ["interpreted", "compiled"])
@pytest.mark.parametrize("problem", RECORDED)
def test_a_recorded_answer_computes_what_its_problem_asks_for(problem, how, tmp_path):
    code, said = checked(how, load_problem(problem, "cpu").source, recorded_source(problem, "helion"), tmp_path)
    assert code == 0, said


@pytest.mark.long
@pytest.mark.parametrize("name", ["relu", "odd_sizes", "two_outputs"])
@pytest.mark.parametrize("how", ["interpreted", "compiled"])
def test_an_honest_candidate_computes_what_its_problem_asks_for(name, how, tmp_path):
    told = HONEST["helion"][name]
    code, said = checked(how, told.problem.source, told.source, tmp_path)
    assert code == 0, said
