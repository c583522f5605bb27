"""Answers in further languages: jailed builders compile their kernels for Hopper, or interpret them, on a processor."""

import re
import shutil
import subprocess
import sys
from contextlib import closing

import pytest
import torch

from bench.measuring import recorded_source
from kernelwright.agent.providers.recorded import recorded_targets
from kernelwright.problems import catalog_names, load_problem
from kernelwright.prompts.rendering import EXAMPLES
from kernelwright.sandbox.build import read_record
from kernelwright.sandbox.calls.sessions import Refused, Session
from kernelwright.sandbox.machine import package_headers, package_version
from kernelwright.sandbox.toolchain import toolchain
from kernelwright.sandbox.verdict.settings import JudgeSettings
from kernelwright.sandbox.workfolder import WorkFolder
from tests.gpu.languages import HONEST, HOSTILE

NVCC = (shutil.which("nvcc") is None, "needs nvcc, the compiler of the CUDA toolkit, on PATH")
LACKING = {
    "cute": [(package_version("cute") is None, "needs the package nvidia-cutlass-dsl")],
    "cutlass": [(package_headers("cutlass") is None, "needs the package nvidia-cutlass"), NVCC],
    "helion": [(package_version("helion") is None, "needs the package helion")],
    "tilelang": [(package_version("tilelang") is None, "needs the package tilelang"), NVCC],
}
MARKS = {name: [pytest.mark.skipif(*one[:1], reason=one[1]) for one in each] for name, each in LACKING.items()}
BEFORE = {
    "cute": "import os\nos.environ['CUTE_DSL_ARCH'] = 'sm_90a'\n",
    # A torch for processors looks for no toolkit; it compiles all the same, and cannot link.
    "cutlass": "from torch.utils import cpp_extension\n"
    'cpp_extension.CUDA_HOME = cpp_extension.CUDA_HOME or "/usr/local/cuda"\n',
    "helion": "import os\nos.environ['HELION_INTERPRET'] = '1'\n",
    "tilelang": """import os\nos.environ["TILELANG_DEFAULT_TARGET"] = '{"kind": "cuda", "arch": "sm_90a"}'\n""",
}
"""The lines in front of a source by which it is compiled for Hopper, or interpreted."""
ARGUMENTS = {
    "activation_chain": (-0.25, 3.0, 0.8, -0.3),
    "gelu_bias_residual": (2048,),
    "rms_norm": (1024, 1e-5),
    "softmax_rows": (),
}
"""Arguments of the constructors of recorded answers, by problem."""
WITHOUT_DEVICE = pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA device")


def example(language):
    return (EXAMPLES / f"{language}.py").read_text()


def said_of(source, then="", entry="Made", **more):
    """A jailed builder's words on a source, with the lines `then` behind it; its work folder's files and record."""
    with closing(WorkFolder()) as folder:
        with Session("builder", folder, JudgeSettings()) as session:
            session.greet()
            message = {"op": "build", "entry": entry, "built": str(folder.path / "build"), "arguments": {"l": []}}
            text, said = folder.write("candidate.py", f"{source}\n{then}\nclass Made: pass\n"), ""
            try:
                session.ask(message | more | {"source": str(text), "threads": 1, "cores": [0]}, 300)
            except Refused as error:
                said = f"{error.reason}\n{error.log}"
        runs = {run.file: run.compiled for run in read_record(folder.path).compilations}
        return said, len(list(folder.path.rglob("*.cubin"))), runs


def refused(language, source, arguments=(1000,)):
    """The words on a source that is compiled in the jail; none where its kernels were compiled."""
    if language == "cutlass":
        plan = toolchain().plan(2**33, cuda_architectures="9.0")
        said, _, runs = said_of(BEFORE[language] + source, entry="ModelNew", shortcuts=plan)
        return "" if runs.get("cuda.cu") else said or "nothing was compiled"
    then = f"model = ModelNew(*{arguments!r})" + ("\nassert model.run is not None" if language == "cute" else "")
    said, programs, _ = said_of(BEFORE[language] + source, then)
    return said if language == "cute" or programs else said or "nothing was compiled"


def each(*languages):
    return [pytest.param(name, marks=MARKS[name]) for name in languages]


COMPILED = ("cute", "cutlass", "tilelang")
RECORDED = {name: [one for one in catalog_names() if name in recorded_targets(one)] for name in (*COMPILED, "helion")}


@pytest.mark.slow
@pytest.mark.parametrize("language", each(*COMPILED))
def test_the_example_compiles_in_the_jail(language):
    assert refused(language, example(language)) == ""


@pytest.mark.long
@pytest.mark.parametrize(
    ("language", "problem"), [pytest.param(name, one, marks=MARKS[name]) for name in COMPILED for one in RECORDED[name]]
)
def test_a_recorded_answer_compiles_in_the_jail(language, problem):
    assert refused(language, recorded_source(problem, language), ARGUMENTS.get(problem)) == ""


@pytest.mark.long
@pytest.mark.parametrize(
    ("language", "candidate"),
    [
        pytest.param(name, one, marks=MARKS[name])
        for name in COMPILED
        for one in [*HONEST[name].values(), *HOSTILE[name].values()]
    ],
)
def test_a_candidate_of_the_corpora_compiles_in_the_jail(language, candidate):
    assert refused(language, candidate.source, ()) == ""


MATRIX = "given(torch.empty(512, 1000))"
CALLS = {
    "cute": f"ModelNew(1000).run({MATRIX}, given(ModelNew(1000).scale.detach()), {MATRIX}, CUstream(0))",
    "tilelang": "ModelNew(1000)",
    "helion": "ModelNew(1000)(torch.rand(64, 1000))",
}


@pytest.mark.slow
@WITHOUT_DEVICE
@pytest.mark.parametrize(
    ("language", "words"),
    [
        pytest.param("cute", "cudaErrorInsufficientDriver|cudaErrorNoDevice", marks=MARKS["cute"]),
        pytest.param("helion", "No module named 'triton'|active driver|CUDA", marks=MARKS["helion"]),
        pytest.param("tilelang", "^.*available target", marks=MARKS["tilelang"]),
    ],
)
def test_without_a_device_a_call_says_what_is_missing(language, words):
    before = BEFORE[language] if language == "cute" else ""
    assert re.search(words, said_of(before + example(language), CALLS[language])[0])


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
TEXTS = {"the example": lambda: ((EXAMPLES / "reference.py").read_text(), example("helion"))}
LONG_TEXTS = {
    name: lambda name=name: (load_problem(name, "cpu").source, recorded_source(name, "helion"))
    for name in RECORDED["helion"]
} | {
    name: lambda name=name: (HONEST["helion"][name].problem.source, HONEST["helion"][name].source)
    for name in ("relu", "odd_sizes", "two_outputs")
}


@pytest.mark.slow
@pytest.mark.parametrize("how", ["interpreted", "compiled"])
@pytest.mark.parametrize(
    "texts",
    [
        pytest.param(make, id=name, marks=[*MARKS["helion"], *([pytest.mark.long] if name in LONG_TEXTS else [])])
        for name, make in (TEXTS | LONG_TEXTS).items()
    ],
)
def test_an_answer_in_helion_computes_what_its_reference_computes(how, texts, tmp_path, folder):
    for name, text in zip(("reference.py", "candidate.py"), texts(), strict=True):
        (tmp_path / name).write_text(text)
    variables = folder.environment(2) | ({"HELION_INTERPRET": "1"} if how == "interpreted" else {})
    command = [sys.executable, "-c", CHECK, how]
    done = subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("language", each("helion"))
def test_the_example_is_right_in_the_jail_where_it_is_interpreted(language):
    call = "x = torch.rand(64, 1000)\nmodel = ModelNew(1000).requires_grad_(False)\ny = model(x)\n"
    right = "torch.testing.assert_close(y, x * model.scale + x.sum(1, keepdim=True))"
    assert said_of(BEFORE[language] + example(language), call + right)[0] == ""
