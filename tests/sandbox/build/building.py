"""`python -m tests.sandbox.build.building NAME FOLDER [PLAN]`: builds one case of the corpus, and writes the outcome.

The stock way, or with shortcuts installed. `FOLDER/outcome.pt` holds `{built, error, results}`.
"""

import ctypes
import json
import os
import sys
import time
from pathlib import Path

import torch
from torch.utils.cpp_extension import load, load_inline

from tests.sandbox.build.corpus import CORPUS
from tests.sandbox.build.corpus_cuda import CUDA


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
