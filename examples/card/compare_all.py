"""Whole programs on a card: transformer blocks and ResNet-50 captured, split, searched and compared with their kernels.

Inference in bfloat16 and a training step in float32, in `KERNELWRIGHT_PROGRAMS` (default: runs/programs). Where answers
are recorded (examples/card/answers) they are re-evaluated and put in; where none are, your own search in
PROGRAMS/NAME-run counts. The blocks in inference have to be 1.3 times as fast as the better of eager as shipped and
torch.compile, the others not slower. What is there is not made again, so what was stopped goes on.
`KERNELWRIGHT_BENCH=NAME,NAME` picks some; `KERNELWRIGHT_SMALL=1` takes small sizes, and a processor where there is no
card.
"""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from bench.measuring import Report, chosen
from kernelwright.programs.compare import Comparison, words
from kernelwright.programs.record import read_split, write_record
from kernelwright_child import driver

EXAMPLES = Path(__file__).parent
PROMISED = {"block-infer": 1.3, "resnet50-infer": 0.99, "block-train": 0.99, "resnet50-train": 0.99}
TOP = "12"
"""Parts that are chosen: more than ResNet-50 has kinds of bottlenecks. Those without an answer are left as they are."""
PROCESSES = "3"
NO_CARD = Report(
    "  the driver sees no CUDA device, which these programs are for; KERNELWRIGHT_SMALL=1 captures small ones here"
)
NO_TORCHVISION = "  torchvision is not installed: ResNet-50 is the one that is written in examples/card/resnet50.py"


def run() -> Report:
    """Whole programs on a card, with their kernels and without; each as far as it is."""
    small = ["small"] if os.environ.get("KERNELWRIGHT_SMALL") else []
    if not small and driver.device_count() == 0:
        return NO_CARD
    if find_spec("torchvision") is None:
        print(NO_TORCHVISION, flush=True)
    top = Path(os.environ.get("KERNELWRIGHT_PROGRAMS", "runs/programs"))
    reported, missed = [], []
    for name in chosen(PROMISED):
        print(f"\n== {name}", flush=True)
        capture(name, top, small)
        if not search(name, top):
            reported.append(f"  {name} has no kernels yet: " + " ".join(_searching(name, top)) + " --model MODEL")
            continue
        found = comparison(name, top, small)
        print(words(found), flush=True)
        if not found.right or found.whole.interval.low < PROMISED[name]:
            missed.append(name)
    reported.append(f"  below what was promised: {', '.join(missed) or 'none'}; pictures: {top}")
    return Report("\n".join(reported), not missed)


def capture(name: str, top: Path, small: list[str]) -> None:
    """Capture the program with its choice, in `top / name`."""
    if not (top / name / "split.json").is_file():
        _said("capture", *_script(name, small, "--out", str(top / name), "--top", TOP))
    if not (top / f"{name}-run").exists():
        print(_said("split", str(top / name), "--top", TOP), flush=True)


def search(name: str, top: Path) -> bool:
    """Return whether there is a run over the capture in the end: of the recorded answers, or a user's own."""
    over, answers = top / f"{name}-run", EXAMPLES / "answers" / name
    if answers.is_dir() and driver.device_count():
        done = over.with_suffix(".done")
        if not done.is_file():
            count = answered(top / name, answers)
            recorded = ("--folder", str(answers), "--set", "measure=false")  # which no answer waits for
            first = (*_searching(name, top, str(count))[1:], *recorded)
            print(_said(*(("resume", str(over)) if over.exists() else first)), flush=True)
            done.touch()
    return (over / "capture.json").is_file()


def answered(capture: Path, answers: Path) -> int:
    """Return how many of the chosen parts have an answer; the choice is of these from now on."""
    split = read_split(capture)
    kept = tuple(one for one in split.chosen if (answers / one.part).is_dir())
    if not kept:
        chosen = ", ".join(one.part for one in split.chosen) or "none"
        raise SystemExit(f"no chosen part of {capture} ({chosen}) has an answer in {answers}; capture on an idle card")
    write_record(capture, split.model_copy(update={"chosen": kept}))
    return len(kept)


def comparison(name: str, top: Path, small: list[str]) -> Comparison:
    """Compare the program with its kernels and without; drawn as `NAME.svg`, kept as `NAME.json`."""
    kept = top / f"{name}.json"
    if not kept.is_file():
        how = ("--run", str(top / f"{name}-run"), "--processes", PROCESSES, "--picture", str(top / f"{name}.svg"))
        kept.write_text(_said("compare", *_script(name, small, *how, "--json")), encoding="utf-8")
    return Comparison.model_validate_json(kept.read_text(encoding="utf-8"))


def _script(name: str, small: list[str], *options: str) -> tuple[str, ...]:
    program, mode = name.split("-")
    return (str(EXAMPLES / f"{program}.py"), *options, "--", mode, *small)


def _searching(name: str, top: Path, count: str = TOP) -> tuple[str, ...]:
    over = ("--target", "cuda", "--attempts", "2", "--out", str(top / f"{name}-run"))
    return ("kernelwright", "run", str(top / name), "--top", count, *over)


def _said(*arguments: str) -> str:
    """Run a command of ours and return its output; one that cannot be carried out ends the bench with its words."""
    done = subprocess.run(
        [sys.executable, "-m", "kernelwright", *arguments], stdout=subprocess.PIPE, text=True, check=False
    )
    if done.returncode not in (0, 1):
        raise SystemExit(f"kernelwright {' '.join(arguments)} ended with exit code {done.returncode}")
    return done.stdout


if __name__ == "__main__":
    report = run()
    print(report)
    sys.exit(not report.holds)
