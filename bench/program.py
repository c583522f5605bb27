"""Whole programs on a card: ResNet-50 and a transformer block captured and split, and compared with their kernels.

Inference in bfloat16 and a training step in float32. Captures go to `KERNELWRIGHT_PROGRAMS` (default: runs/programs).
Kernels are searched for by `kernelwright run PROGRAMS/NAME --out PROGRAMS/NAME-run`; where such a run lies, the whole
is compared with it: the block in inference has to be 1.3 times as fast as the better of eager as shipped and
torch.compile, the others not slower. `KERNELWRIGHT_BENCH=NAME,NAME` picks some; `KERNELWRIGHT_SMALL=1` takes sizes for
a processor.
"""

import os
import subprocess
import sys
from pathlib import Path

from bench.chosen import chosen
from bench.gpu_facts import Report
from kernelwright.programs.compare.comparison import Comparison
from kernelwright.programs.compare.words import words

EXAMPLES = Path(__file__).parent.parent / "examples" / "card"
PROMISED = {"block-infer": 1.3, "block-train": 0.99, "resnet50-infer": 0.99, "resnet50-train": 0.99}
TOP = "5"


def run() -> Report:
    """Each program as far as it is."""
    top = Path(os.environ.get("KERNELWRIGHT_PROGRAMS", "runs/programs"))
    small = ["small"] if os.environ.get("KERNELWRIGHT_SMALL") else []
    missed, waiting = [], []
    for name in chosen(PROMISED):
        program, mode = name.split("-")
        script, folder = EXAMPLES / f"{program}.py", top / name
        if not (folder / "capture.json").is_file():
            _said("capture", str(script), "--out", str(folder), "--top", TOP, "--", mode, *small)
            print(_said("split", str(folder), "--compile", "--top", TOP), flush=True)
        over = top / f"{name}-run"
        if not (over / "capture.json").is_file():
            waiting.append(f"kernelwright run {folder} --top {TOP} --target cuda --out {over} --model MODEL")
            continue
        picture = ("--picture", str(top / f"{name}.svg"))
        found = Comparison.model_validate_json(
            _said("compare", str(script), "--run", str(over), *picture, "--json", "--", mode, *small)
        )
        print(words(found), flush=True)
        if not found.right or found.whole.interval.low < PROMISED[name]:
            missed.append(name)
    told = [f"  {command}" for command in waiting]
    told.append(f"  below what was promised: {', '.join(missed) or 'none'}; without kernels yet: {len(waiting)}")
    return Report("\n".join(told), not missed)


def _said(*arguments: str) -> str:
    """What a command of ours prints; one that can not be carried out ends the bench with its words."""
    done = subprocess.run(
        [sys.executable, "-m", "kernelwright", *arguments], stdout=subprocess.PIPE, text=True, check=False
    )
    if done.returncode not in (0, 1):
        raise SystemExit(f"kernelwright {' '.join(arguments)} ended with exit code {done.returncode}")
    return done.stdout
