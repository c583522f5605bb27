"""Building a case in a process of its own, and comparing what came of it."""

import json
import math
import re
import subprocess
import sys
from pathlib import Path

import torch

ROOT = Path(__file__).parents[3]
ADDRESS = re.compile(r"^\s*[0-9a-f]+:\s*")
LABEL = re.compile(r"(?:\.(?:LC|L|LANCHOR)\d+|\.(?:rodata|text|data|bss)[\w.$]*)(?:[+-]0x[0-9a-f]+)?")
RELATIVE = re.compile(r"-?0x[0-9a-f]+\(%rip\)(?=.*# <)")
FILLING = re.compile(r"(?:data16 |cs )*(?:nop\w*\b|xchg\s+%ax,%ax$)")
"""Between functions and loops, for their alignment."""
RELOCATED = re.compile(r"^\s*[0-9a-f]+: R_X86_64_")
"""A line on what the linker will put there; until then the instruction before it shows what lies there by chance."""
TARGET = re.compile(r"\b[0-9a-f]+ <(.*?)(?:\+0x[0-9a-f]+)?>")
KERNEL = re.compile(r"\b(?:kernel|twice<.*)\(|_omp_fn")
OWN = re.compile(r"^(?:run|one|two|three|part|kernel|void twice<.*>)\(")


def outcome_of(name, folder, plan=None):
    """`{built, error, results, seconds, cpu_s}` of one case, built in `folder` the stock way or by a plan."""
    if not (folder / "outcome.pt").exists():
        folder.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "tests.sandbox.build.building", name, str(folder)]
        subprocess.run([*command, *([json.dumps(plan)] if plan else [])], cwd=ROOT, check=True, capture_output=True)
    return torch.load(folder / "outcome.pt", weights_only=False)


def both_ways(top, plan):
    """The two folders and outcomes of a case by its name: built the stock way and by the plan, once, below `top`."""

    def build(name):
        folders = top / name.replace(" ", "_") / "stock", top / name.replace(" ", "_") / "ours"
        return folders, (outcome_of(name, folders[0]), outcome_of(name, folders[1], plan))

    return build


def ways_of(folder):
    lines = (folder / "compilations.jsonl").read_text().splitlines()
    return {entry["file"]: entry["way"] for entry in map(json.loads, lines)}


def is_equal(one, other):
    """Whether two results are the same to the last bit, within lists, tuples and dictionaries too."""
    if isinstance(one, torch.Tensor):
        same = isinstance(other, torch.Tensor) and one.dtype == other.dtype and one.shape == other.shape
        return same and torch.equal(torch.nan_to_num(one), torch.nan_to_num(other))
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(is_equal, one, other))
    return one == other or (isinstance(one, float) and math.isnan(one) and math.isnan(other))


def first_error(text):
    """The compiler's or linker's first complaint, as a repair prompt would show it, without folders.

    Without the names that the compiler proposes too: it knows more of them with the stock header.
    """
    for line in text.splitlines():
        if re.search(r"error: |undefined symbol|undefined reference|cannot find", line):
            return re.sub(r"/\S*/|; did you mean .*", "", line)
    return ""


def functions(path, pattern):
    """The disassembly of each function of an object file whose name fits, without what depends on where things lie."""
    command = ["objdump", "-dr", "-C", "--no-show-raw-insn", str(path)]
    found, current = {}, None
    for line in subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines():
        if head := re.match(r"^[0-9a-f]+ <(.*)>:$", line):
            current = found.setdefault(head[1], []) if pattern.search(head[1]) else None
        elif line.startswith("Disassembly"):
            current = None
        elif current is not None and line.strip():
            if RELOCATED.match(line) and current:
                current[-1] = re.sub(r" <.*>$", "", current[-1])
            words = RELATIVE.sub("(%rip)", TARGET.sub(r"<\1>", LABEL.sub("L", ADDRESS.sub("", line)))).strip()
            if not FILLING.match(words):
                current.append(words)
    return found


def device_code(path):
    """The device's machine code in a library, without the names of the files that it came from."""
    done = subprocess.run(["cuobjdump", "-sass", str(path)], capture_output=True, text=True, check=True)
    return [line for line in done.stdout.splitlines() if "/*0" in line or "Function :" in line]
