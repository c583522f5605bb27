"""Programs that nobody here wrote: each captured and split without a change; each chosen problem sound, and itself.

Needs torchvision, timm, transformers and einops; a program whose package is not there is told, and left out. Random
weights, small sizes, on the processor. `KERNELWRIGHT_BENCH=NAME,NAME` picks some.
"""

import os
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from bench.placebo import itself
from kernelwright.evals.checking import check_entry, examine_problem
from kernelwright.problems import load_problem
from kernelwright.problems.formats import Entry
from kernelwright.programs.record import read_capture, read_split
from kernelwright.sandbox.judge.judging import Judge
from kernelwright.sandbox.verdict.settings import Settings
from kernelwright.sandbox.verdict.verdicts import Candidate, Passed

TOP = 3
THREADS = 1
START = """import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)
"""
TORCHVISION = """
try:  # a wheel that was built for CUDA does not find its operators beside a torch without it
    import torchvision
except RuntimeError:
    library = torch.library.Library("torchvision", "DEF")
    library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    library.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    import torchvision
"""
EVALUATE = """
with torch.no_grad():
    for _ in range(4):
        model(*inputs, **options)
"""
TRAIN = """
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for _ in range(4):
    loss = model(*inputs, **options).float().pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
PROGRAMS = {
    "encoder": ((), "layer = nn.TransformerEncoderLayer(256, 8, 512, batch_first=True)\n"
                    "model = nn.TransformerEncoder(layer, 2).eval()\n"
                    "inputs, options = [torch.randn(8, 64, 256)], {}", EVALUATE),
    "resnet18": (("torchvision",), TORCHVISION + "model = torchvision.models.resnet18().eval()\n"
                 "inputs, options = [torch.randn(2, 3, 96, 96)], {}", EVALUATE),
    "resnet18_training": (("torchvision",), TORCHVISION + "model = torchvision.models.resnet18().train()\n"
                          "inputs, options = [torch.randn(2, 3, 96, 96)], {}", TRAIN),
    "swin": (("torchvision",), TORCHVISION + "model = torchvision.models.swin_t().eval()\n"
             "inputs, options = [torch.randn(1, 3, 96, 96)], {}", EVALUATE),
    "vit": (("timm",), TORCHVISION + "import timm\n"
            "model = timm.create_model('vit_tiny_patch16_224', img_size=96, depth=4).eval()\n"
            "inputs, options = [torch.randn(4, 3, 96, 96)], {}", EVALUATE),
    "resmlp_training": (("timm",), TORCHVISION + "import timm\n"
                       "model = timm.create_model('resmlp_12_224', img_size=224).train()\n"
                       "inputs, options = [torch.randn(4, 3, 224, 224)], {}", TRAIN),
    "bert": (("transformers",), TORCHVISION + "from transformers import BertConfig, BertModel\n"
             "model = BertModel(BertConfig(hidden_size=128, num_hidden_layers=2, num_attention_heads=4, "
             "intermediate_size=512, vocab_size=1000)).eval()\n"
             "inputs = []\noptions = {'input_ids': torch.randint(0, 1000, (8, 64)), "
             "'attention_mask': torch.ones(8, 64, dtype=torch.long)}", EVALUATE),
    "llama": (("transformers",), TORCHVISION + "from transformers import LlamaConfig, LlamaModel\n"
              "model = LlamaModel(LlamaConfig(hidden_size=128, num_hidden_layers=2, num_attention_heads=4, "
              "num_key_value_heads=2, intermediate_size=384, vocab_size=1000)).eval()\n"
              "inputs, options = [torch.randint(0, 1000, (4, 64))], {'use_cache': False}", EVALUATE),
    "patches": (("einops",), "from einops.layers.torch import Rearrange, Reduce\n"
               "model = nn.Sequential(Rearrange('b c (h p) (w q) -> b (h w) (p q c)', p=8, q=8), nn.LayerNorm(192), "
               "nn.Linear(192, 256), nn.GELU(), nn.Linear(256, 256), Reduce('b n d -> b d', 'mean'), "
               "nn.Linear(256, 10)).eval()\ninputs, options = [torch.randn(8, 3, 96, 96)], {}", EVALUATE),
}  # fmt: skip
"""By name: packages, the program's beginning, and what it does."""


class Outcome(NamedTuple):
    """One program."""

    program: str
    parts: int
    sound: int
    right: int
    words: str


class Outcomes(NamedTuple):
    """All of them."""

    outcomes: tuple[Outcome, ...]
    missing: tuple[str, ...]

    @property
    def holds(self) -> bool:
        """Whether at least six programs had parts, all of them sound and right when judged against themselves."""
        full = [one for one in self.outcomes if one.parts and one.sound == one.right == one.parts]
        return len(full) == len(self.outcomes) and len(full) >= min(6, len(_wanted()))

    def __str__(self) -> str:
        """A line each."""
        lines = [
            f"  {one.program}: {one.sound} of {one.parts} sound, {one.right} right; {one.words}"
            for one in self.outcomes
        ]
        return "\n".join([*lines, *(f"  {name}: not installed here" for name in self.missing)])


def run() -> Outcomes:
    """One program after the other."""
    there = {name: one for name, one in _wanted().items() if all(find_spec(package) for package in one[0])}
    with tempfile.TemporaryDirectory() as folder:
        outcomes = tuple(_outcome(name, "\n".join([START, *one[1:]]), Path(folder)) for name, one in there.items())
    return Outcomes(outcomes, tuple(sorted(set(_wanted()) - set(there))))


def _wanted() -> dict[str, tuple[tuple[str, ...], str, str]]:
    names = os.environ.get("KERNELWRIGHT_BENCH", "").split(",")
    return {name: one for name, one in PROGRAMS.items() if names == [""] or name in names}


def _outcome(name: str, text: str, folder: Path) -> Outcome:
    script, out = folder / f"{name}.py", folder / name
    script.write_text(text)
    began = time.monotonic()
    command = [sys.executable, "-m", "kernelwright", "capture", str(script), "--out", str(out), "--top", str(TOP)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        return Outcome(name, 0, 0, 0, done.stderr.strip().splitlines()[-1])
    took_s = time.monotonic() - began
    captured, split = read_capture(out), read_split(out)
    settings = Settings(threads=THREADS, min_pairs=6, max_pairs=20, time_budget_s=3.0)
    paths = [str(out / captured.part(one.part).problem) for one in split.chosen]
    sound = [check_entry(examine_problem, settings, Entry(id=path, problem=load_problem(path))) for path in paths]
    for line in sound:
        print(f"    {Path(line.problem).name}: {line.status} {'; '.join(line.why)}", flush=True)
    verdicts = [_verdict(path, settings) for path in paths]
    share = 100 * sum(one.share for one in split.chosen)
    words = f"{len(captured.parts)} cut, {share:.0f} % of the time chosen, captured in {took_s:.0f} s; against itself: "
    right = [word for word in verdicts if not word.startswith("failed")]
    return Outcome(name, len(paths), sum(one.status == "ok" for one in sound), len(right), words + ", ".join(verdicts))


def _verdict(path: str, settings: Settings) -> str:
    """What the judge says of a problem's own reference as a candidate."""
    problem = load_problem(path)
    with Judge(problem, settings) as judge:
        verdict = judge.judge(Candidate(source=itself(problem.source)))
    if isinstance(verdict, Passed):
        return verdict.measurement.comparison
    return f"failed at {verdict.stage}: {verdict.reason}"
