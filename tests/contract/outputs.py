"""Real outputs of the commands with `--json`, on the records and on one cheap problem; and the keys in them."""

import contextlib
import json
import os
import re
import shutil
import tarfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

from typer.testing import CliRunner

from tests.contract.recorded import Renames, renamed
from tests.contract.surface import Surface, kernelwright_app
from tests.support.commands import run_with

RECORDS = Path(__file__).parent / "records"
ROOT = Path(__file__).parents[2]
REPLY = "Here it is.\n\n```python\n{}```\n"
QUICK = {
    "show": "show run",
    "show ATTEMPT": "show run min_max/3",
    "show REFERENCE": "show run min_max/reference",
    "leaderboard": "leaderboard run",
    "diff": "diff run run",
    "replay": "replay run",
    "extract": "extract reply.md",
    "extract FAILED": "extract empty.md",
    "prompt": "prompt sum_rows",
    "problems list": "problems list",
    "problems show": "problems show sum_rows",
    "models list": "models list",
    "import": "import benchmark imported",
    "judge --recheck": "judge --recheck passed.json",
}
"""By label, the words of a command that judges nothing; each runs in this process."""
SLOW = {
    "judge PASSED": "judge scored/tasks/total.py scored/candidates/total/right.py --effort screen --device cpu",
    "judge FAILED": "judge scored/tasks/total.py scored/candidates/total/wrong.py --effort screen --device cpu",
    "score": "score scored/tasks scored/candidates --effort screen --device cpu --out new-scores",
    "run": "run sum_rows --provider simulated --attempts 2 --out new-run",
    "resume": "resume run",
    "problems check": "problems check scored/tasks/total.py --device cpu",
    "doctor": "doctor",
    "batch export": "batch export waiting asks.jsonl",
    "batch import": "batch import waiting answers.jsonl",
    "capture": "capture program.py --top 1 --out captured",
    "split": "split captured --top 1",
}
"""The same for what judges, starts processes or changes a run; one after the other, each in a process of its own."""
NOT_JSON = {"capture"}
"""Steps that only prepare the next one."""
PREPARED = {"batch export": "run scored/tasks/total.py --provider batch --model m --set measure=false --out waiting"}
DATA_KEYED = re.compile(
    r"(^|[.\]])(baselines|baselines_ms|config|differences|errors|errors_allowed(\.\*)?|failures|families|levels|outcomes|own|pass_at|seconds|speedups|versions"
    r"|fast\.(best|eager|shipped)|families\.\*\.fast)$"
)
"""Paths of objects whose own keys are data: names of baselines, stages, families."""
PROGRAM = """
import torch
from torch import nn


class Block(nn.Module):
    def forward(self, x):
        return torch.softmax(torch.relu(x * 2) + 1, dim=1).cumsum(dim=1)


model = nn.Sequential(Block(), Block())
with torch.no_grad():
    for _ in range(8):
        model(torch.randn(512, 2048))
"""


class Output(NamedTuple):
    """The keys of an output by their paths, and the paths under which there was nothing."""

    keys: dict[str, str]
    empty: frozenset[str]
    values: Any


def prepared(place: Path) -> Path:
    """A folder with copies of all records, a reply with a candidate, and one without."""
    for archive in RECORDS.glob("*.tar.xz"):
        with tarfile.open(archive) as opened:
            opened.extractall(place, filter="data")
    for path in RECORDS.glob("*.json"):
        shutil.copy(path, place)
    shutil.copytree(place / "scored/tasks", place / "benchmark/KernelBench/level1")
    (place / "benchmark/KernelBench/level1/total.py").rename(place / "benchmark/KernelBench/level1/1_total.py")
    right = (place / "scored/candidates/total/right.py").read_text()
    texts = {"reply.md": REPLY.format(right), "empty.md": "I can not help with that.\n", "program.py": PROGRAM}
    texts |= {"answers.jsonl": ""}
    for name, text in texts.items():
        (place / name).write_text(text)
    return place


def said(place: Path, words: Iterable[str]) -> str:
    """Standard output of a command that runs in this process, with nothing kept before. Raises what it raises."""
    with contextlib.chdir(place), patch.dict(os.environ, KERNELWRIGHT_CACHE=str(place / "cache")):
        result = CliRunner().invoke(kernelwright_app, list(words))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.stdout


def quick_outputs(place: Path) -> dict[str, Output]:
    return {label: output_of(said(place, [*words.split(), "--json"])) for label, words in QUICK.items()}


def slow_outputs(place: Path) -> dict[str, Output]:
    found = {}
    for label, words in SLOW.items():
        if label in PREPARED:
            run_with(place, *PREPARED[label].split())
        done = run_with(place, *words.split(), *([] if label in NOT_JSON else ["--json"]))
        if label not in NOT_JSON:
            assert done.stdout, f"{words} says nothing: {done.stderr}"
            found[label] = output_of(done.stdout)
    return found


def output_of(text: str) -> Output:
    """What an output of one JSON value, or of one a line, holds."""
    try:
        values = [json.loads(text)]
    except ValueError:
        values = [json.loads(line) for line in text.splitlines()]
    found = [pair for value in values for pair in _paths(value, "")]
    keys = dict.fromkeys((path for path, _ in found if path and not path.endswith("[]")), "key")
    filled = {path for path, empty in found if not empty}
    return Output(keys, frozenset({path for path, empty in found if empty} - filled), values)


def _paths(value: Any, path: str) -> Iterator[tuple[str, bool]]:
    yield path, value is None or value == [] or value == {}
    if isinstance(value, list):
        for one in value:
            yield from _paths(one, f"{path}[]")
    elif isinstance(value, dict):
        keyed_by_data = DATA_KEYED.search(path)
        for key, one in value.items():
            inner = "*" if keyed_by_data else key
            yield from _paths(one, f"{path}.{inner}" if path else inner)


def surface_of(outputs: dict[str, Output], recorded: Surface, renames: Renames) -> Surface:
    """The keys as a live surface. What is recorded below something empty counts as there: it can not be seen."""
    found: Surface = {}
    for label, output in outputs.items():
        held = {renamed(label, path, renames) for path in recorded.get(label, {})}
        below = tuple(f"{empty}{mark}" for empty in output.empty for mark in ".[" if empty)
        hidden = {path for path in held if path.startswith(below)}
        found[label] = dict.fromkeys(hidden, "key") | output.keys
    return found
