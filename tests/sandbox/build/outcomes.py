"""Building a case in a process of its own, and comparing what came of it.

`python -m tests.sandbox.build.outcomes NAME FOLDER [PLAN]` builds one case, the stock way or with shortcuts installed.
`FOLDER/outcome.pt` then holds `{built, error, results}`.
"""

import ctypes
import json
import math
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import torch
from torch.utils.cpp_extension import load, load_inline

from tests.sandbox.build.corpus import CORPUS
from tests.sandbox.build.corpus_cuda import CUDA

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
        command = [sys.executable, "-m", "tests.sandbox.build.outcomes", name, str(folder)]
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


def main(name, folder, shortcuts=None):
    case, folder = (CORPUS | CUDA)[name], Path(folder)
    os.environ["TORCH_EXTENSIONS_DIR"] = str(folder)
    os.environ.setdefault("MAX_JOBS", "1")
    if shortcuts:
        from kernelwright_child import compiling as ours

        ours.install_shortcuts(json.loads(shortcuts), str(folder))
    start = time.perf_counter()
    outcome = attempt(case, folder)
    usage = os.times()
    outcome["seconds"] = time.perf_counter() - start
    outcome["cpu_s"] = usage.children_user + usage.children_system
    torch.save(outcome, folder / "outcome.pt")


def attempt(case, folder):
    def write(name, text):
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        return str(path)

    x = torch.linspace(-2, 2, 32, device="cuda" if case.name in CUDA else "cpu").reshape(4, 8)
    names = {"torch": torch, "x": x, "load": load, "load_inline": load_inline, "write": write, "SOURCE": case.source}
    names |= {"folder": lambda path: str(Path(path).parent), "failing": failing, "sum_by_ctypes": sum_by_ctypes}
    names |= {"negated_by_ctypes": negated_by_ctypes}
    try:
        module = eval(case.build, names)
    except (RuntimeError, ImportError, OSError) as error:
        return {"built": False, "error": f"{type(error).__name__}: {error}", "results": None}
    return {"built": True, "error": "", "results": eval(case.ask, names | {"m": module})}


def failing(call):
    try:
        call()
    except (RuntimeError, TypeError) as error:
        return str(error) if isinstance(error, TypeError) else str(error).splitlines()[0]
    return "did not fail"


def sum_by_ctypes(path, x):
    run = ctypes.CDLL(path).run
    run.argtypes, run.restype = [ctypes.c_void_p, ctypes.c_int64], ctypes.c_float
    return run(x.data_ptr(), x.numel())


def negated_by_ctypes(path, x):
    run, out = ctypes.CDLL(path).run, torch.empty_like(x)
    run.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64]
    assert run(x.data_ptr(), out.data_ptr(), x.numel()) == 0
    return out


if __name__ == "__main__":
    main(*sys.argv[1:])
