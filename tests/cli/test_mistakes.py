"""A mistake of the user ends with 2 and one sentence that names it."""

import pytest

from tests.support.commands import run_with
from tests.support.foreign import write_tree
from tests.support.problems import CUDA, PROBLEM, RIGHT
from tests.support.runs import made_run

pytestmark = pytest.mark.slow
NOWHERE = "run problem.py --model m --base-url http://127.0.0.1:9/v1"
BROKEN = {
    "no_model": (PROBLEM.replace("class Model(", "class Network("), "Model"),
    "no_inputs": (PROBLEM.replace("def get_inputs", "def inputs"), "get_inputs"),
    "no_python": (PROBLEM + "\ndef (:\n", "line 17"),
    "raises": (PROBLEM.replace("dim=1", "dim=7"), "does not run"),
}
MISTAKES = {
    **{f"judge {name}.py right.py": said for name, (_, said) in BROKEN.items()},
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
    "score absent/ ours": "absent",
    "score problem.py absent": "folder absent",
    "score rms_norm ours": "names a problem",
    "score problem.py ours --shard 3/2": "give i/n",
    "score problem.py ours --merge absent": "file absent/scores.db",
    "compare problem.py --run ours": "ours searched for no parts of a program",
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
    "leaderboard empty": "holds no run",
    "leaderboard made --format pdf": "no format 'pdf'",
    "leaderboard made --format md --json": "leave one of them out",
    "leaderboard made --verify 1": "verify them there",
    "inspect made --export x.html": "name one of them",
    "inspect absent": "there is no folder absent",
    "inspect made/a --export no/x.html": "cannot write",
    "inspect made/a --export x.png": "give report.html or picture.svg",
    "show absent": "there is no folder absent",
    "show made/a x/1": "has no problem 'x'",
    "show made/a problem_0/99": "no attempt 99",
    "show made/a problem_0": "names no attempt",
    "diff made/a right.py": "is not the folder of a run",
    "diff right.py absent.py": "absent.py",
    "import nowhere ours": "there is no nowhere",
    "import empty ours": "in no format that is known",
    "import KernelBench ours --only level9": "no 'level9'",
    "export made/a": "say where to write",
    "prompt problem.py --target-python abc": "two or three numbers with points",
    "capture problem.py --out right.py": "the folder right.py cannot be made",
    "export made/a out --to xml": "there are: jsonl",
    "export KernelBench out": "not the folder of a run",
}
OF_RUNS = {
    "run": "name problems or a --suite",
    "run --suite x": "no suite 'x'",
    "run problem.py": "name a model",
    "run problem.py --model m": "OPENAI_API_KEY",
    f"{NOWHERE} --set measure=false": "cannot be reached",
    "run problem.py --set budget=3": "budget.judge_s, budget.tokens, budget.usd, budget.wall_s",
    f"{NOWHERE} --strategy x": "no strategy 'x'",
    f"{NOWHERE} --out .": "is not empty",
    f"{NOWHERE} --cache problem.py": "choose another --cache folder",
    "resume .": "is not the folder of a run",
    "resume absent": "there is no folder",
    "replay .": "folder of a run",
    "run problem.py --provider x --model m": "no provider 'x'; there are: batch, files, local, ",
    "run problem.py --provider vllm": "needs the name of a model; add --model",
    "run problem.py --provider files --base-url http://x/v1": "--base-url names a server but",
    "run problem.py --model m --folder tasks": "--folder is for --provider files",
    "run problem.py --provider recorded --model m": "recorded answers come from no model",
    "run problem.py --provider groq --model m": "no key in the variable GROQ_API_KEY",
    "run problem.py --model m --api x": "no form 'x'; there are: chat, responses",
    "run problem.py --api responses": "--api responses is for a server but no model was given",
    "run problem.py --provider files --api-key-env MY_KEY": "--api-key-env MY_KEY is for a",
    "run problem.py --model m --presets x.toml": "name one with --provider",
    "run problem.py --provider a --presets x.toml": "check the path",
}
"""The run's own words may come first."""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A problem with candidates, runs of two models, a benchmark's tree and an empty folder."""
    folder = tmp_path_factory.mktemp("mistakes")
    for name, (text, _) in (BROKEN | {"problem": (PROBLEM, "")}).items():
        (folder / f"{name}.py").write_text(text)
    (folder / "right.py").write_text(RIGHT)
    (folder / "cuda.py").write_text(CUDA)
    (folder / "ours/problem").mkdir(parents=True)
    (folder / "ours/problem/a.py").write_text(f"import triton\n\n@triton.jit\ndef kernel():\n    pass\n{RIGHT}")
    (folder / "empty").mkdir()
    for name in ("made/a", "made/b"):
        made_run(folder / name, problems=1, attempts=2)
    write_tree(folder / "KernelBench")
    return folder


@pytest.mark.parametrize("line", [*MISTAKES, *OF_RUNS])
def test_a_mistake_ends_with_2_and_one_sentence(place, line):
    done = run_with(place, *line.split())
    assert done.returncode == 2, done.stdout + done.stderr
    assert (MISTAKES | OF_RUNS)[line] in done.stderr and "Traceback" not in done.stderr
    if line in MISTAKES:
        assert (done.stdout, done.stderr.count("\n")) == ("", 1) and done.stderr.startswith("kernelwright: ")
