"""A mistake of the user ends with 2 and one sentence that names it."""

import pytest

from tests.support.problems import CUDA, RIGHT

pytestmark = pytest.mark.slow
NOWHERE = "run problem.py --model m --base-url http://127.0.0.1:9/v1"
MISTAKES = {
    "judge rellu right.py": "no problem 'rellu'",
    "judge problem.py absent.py": "there is no candidate file absent.py",
    "judge absent.py right.py": "absent.py",
    "judge problem.py right.py --jail x": "there are: auto, strict, off",
    "judge problem.py right.py --compile x": "no torch.compile mode 'x'",
    "judge problem.py": "judge needs a problem and a candidate file",
    "judge --recheck right.py": "the record right.py is no JSON",
    "judge rms_norm a.py --recheck record.json": "--recheck",
    "judge problem.py .": "cannot be read",
    "judge problem.py right.py --size gpu": "size",
    "judge problem.py right.py --device gpu": "no device 'gpu'",
    "judge problem.py right.py --dtype int8": "no dtype 'int8'",
    "judge problem.py right.py --memory lots": "--memory 'lots' is no size",
    "judge problem.py cuda.py --device cpu": "written in cuda runs on a CUDA",
    "run problem.py --dtype int8": "no dtype 'int8'; there are: float32, float16",
    "run problem.py --device cuda": "target cpp asks for kernels that run on a",
    "run problem.py --target cuda --device cuda:1 --executor ray": "a cluster hands out its own",
    **{f"{words} --threads 4096": "--threads is 4096" for words in ("judge problem.py right.py", "run problem.py")},
    "models serve --threads 4096": "--threads is 4096",
    "run rms_norm --top 2": "--top chooses among the parts of a capture",
    "score problem.py ours --device cpu": "written in triton runs on a",
    "score problem.py ours --device cuda:1 --devices 2": "--devices 2 takes the first",
    "score nowhere .": "no problem 'nowhere'",
    "prompt rms_norm --role fix": ": propose, repair, improve",
    "prompt rms_norm --target hip": "there are: cpp, cuda, cutlass, ",
    "prompt rms_norm --role repair": "needs a parent",
    "prompt rms_norm --evidence log.txt": "name that with --parent",
    "prompt rms_norm --target cuda --device H900": "no device 'H900'",
    "extract absent.txt": "absent.txt",
    "problems list --family x": "no family 'x'",
    "problems show rms_nrom": "nearest: rms_norm",
    "problems check rms_norm rms_nrom": "nearest: rms_norm",
    "problems check no/where": "file no/where",
    "problems check nowhere": "no problem 'nowhere'",
    "problems check nowhere::level1/1": "nowhere does not exist",
    "problems check rms_norm --size tiny": "no size 'tiny'",
    "problems check rms_norm --jail loose": "auto, strict, off",
    "problems check problem.py --dtype int8": "no dtype 'int8'",
    "models serve absent.gguf": "absent.gguf",
}
OF_RUNS = {
    "run": "name problems or a --suite",
    "run --suite x": "no suite 'x'",
    "run problem.py": "name a model",
    "run problem.py --model m": "OPENAI_API_KEY",
    f"{NOWHERE} --set measure=false": "cannot be reached",
    f"{NOWHERE} --strategy x": "no strategy 'x'",
    f"{NOWHERE} --out .": "is not empty",
    f"{NOWHERE} --cache problem.py": "choose another --cache folder",
    "resume .": "is not the folder of a run",
    "resume absent": "there is no folder",
    "replay .": "folder of a run",
}
"""The run's own words may come first."""


@pytest.mark.parametrize("line", [*MISTAKES, *OF_RUNS])
def test_a_mistake_ends_with_2_and_one_sentence(kernelwright, files, line):
    (files / "cuda.py").write_text(CUDA)
    (files / "ours/problem").mkdir(parents=True)
    (files / "ours/problem/a.py").write_text(f"import triton\n\n@triton.jit\ndef kernel():\n    pass\n{RIGHT}")
    done = kernelwright(*line.split())
    assert done.returncode == 2, done.stdout + done.stderr
    assert (MISTAKES | OF_RUNS)[line] in done.stderr and "Traceback" not in done.stderr
    if line in MISTAKES:
        assert (done.stdout, done.stderr.count("\n")) == ("", 1) and done.stderr.startswith("kernelwright: ")
