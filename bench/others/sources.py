"""Kernels that others released, as problems and candidates. Nothing of them is kept: they are read where they lie."""

import csv
import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from kernelwright.problems import Problem
from kernelwright.problems.formats.robust import read_tasks
from kernelwright.sandbox.verdict.errors import SandboxError

STATE_OR_ATTRIBUTE = '''

import inspect as _inspect


class ModelNew(Model):
    """Calls the released function: inputs first, then the model's state in its order, other values by their names."""

    def forward(self, *inputs):
        given, state = list(inputs), [
            value for name, value in self.state_dict(keep_vars=True).items() if not name.endswith("num_batches_tracked")
        ]
        arguments, by_name = [], {}
        for name, parameter in _inspect.signature(kernel_function).parameters.items():
            value = getattr(self, name, None)
            if given:
                arguments.append(given.pop(0))
            elif isinstance(value, (int, float, tuple, list)):
                by_name[name] = value
            elif state and parameter.default is parameter.empty or state and "out" not in name:
                by_name[name] = state.pop(0)
        return kernel_function(*arguments, **by_name)
'''
FUNCTION_OF_EXTENSION = '''

from torch.utils.cpp_extension import load_inline as _load_inline

_extension = _load_inline(name="released", cpp_sources=[""], cuda_sources=[_SOURCE], no_implicit_headers=True)


class ModelNew(Model):
    """Passes the released function on, as robust-kbench does."""

    def forward(self, *inputs):
        return super().forward(*inputs, fn=_extension.forward)
'''


class Released(NamedTuple):
    """A kernel of a release, and the problem that it is for."""

    source: str
    name: str
    problem: Problem
    kernel: str
    claimed: float | None
    """The speedup that its authors state, against eager PyTorch."""

    @property
    def digest(self) -> str:
        """sha256 of the kernel as released, as 64 hex digits."""
        return hashlib.sha256(self.kernel.encode()).hexdigest()


def read(path: Path) -> list[Released]:
    """All kernels of a release, by what lies at the path. Raises `SandboxError` where that is no known release."""
    for is_there, reader in READERS:
        if is_there(path):
            return list(reader(path))
    raise SandboxError(f"{path} is no release of CUDA-L1, KernelAgent or robust-kbench; see python -m bench others")


def with_present_reference(one: Released, tree: Path) -> Released:
    """The same kernel for KernelBench's present problem of that name."""
    level, _, number = one.name.partition("/")
    root = tree / "KernelBench" if (tree / "KernelBench").is_dir() else tree
    text = next((root / level).glob(f"{number}_*.py")).read_text(encoding="utf-8")
    return one._replace(problem=_problem(one.name, text))


def _problem(name: str, source: str, dtype: str | None = None) -> Problem:
    title = name.replace("/", "_")
    return Problem(name=title, title=title, family="released", size="gpu", source=source, dtype=dtype)


def _cuda_l1(path: Path) -> Iterator[Released]:
    """A list of objects, or a line for each; some have no kernel, or the text `None` in its place."""
    text = path.read_text(encoding="utf-8")
    rows = json.loads(text) if text.lstrip().startswith("[") else [json.loads(line) for line in text.splitlines()]
    for row in rows:
        if row.get("custom_code") not in (None, "", "None"):
            name = f"level{row['level_id']}/{row['task_id']}"
            yield Released("CUDA-L1", name, _problem(name, row["ref_code"]), row["custom_code"], row["score_default"])


def _kernelagent(root: Path) -> Iterator[Released]:
    """Folders with `original.py` and a kernel; their functions take bfloat16, and weights as arguments."""
    for original in sorted(root.glob("L[123]/*/original.py")):
        kernel = next(
            (path for file in ("kernel_code.py", "final_kernel.py", "composed_kernel.py")
             if (path := original.with_name(file)).exists()), None
        )  # fmt: skip
        if kernel is not None:
            name = f"level{original.parts[-3][1:]}/{original.parent.name.partition('_')[0]}"
            reference, code = original.read_text(encoding="utf-8"), kernel.read_text(encoding="utf-8")
            problem = _problem(name, reference, "bfloat16")
            yield Released("KernelAgent", name, problem, f"{reference}\n\n{code}{STATE_OR_ATTRIBUTE}", None)


def _robust_kbench(root: Path) -> Iterator[Released]:
    """Highlighted forward kernels, at the first configuration of their tasks."""
    tasks = {entry.id: entry.problem for entry in read_tasks(root / "tasks").entries}
    csv.field_size_limit(2**31 - 1)
    with (root / "highlighted" / "results.csv").open(encoding="utf-8", newline="") as file:
        claims = {row["task_name"]: row["Speedup"] for row in csv.DictReader(file) if row["forward"] == "True"}
    for path in sorted((root / "highlighted").glob("*/forward/kernel.cu")):
        name = path.parts[-3]
        problem = tasks.get(f"{name}/0")
        if problem is not None:
            code = path.read_text(encoding="utf-8")
            kernel = f"{problem.source}\n\n_SOURCE = {code!r}\n{FUNCTION_OF_EXTENSION}"
            claimed = float(claims[name]) if claims.get(name) else None
            yield Released("robust-kbench", name, problem, kernel, claimed)


READERS: tuple[tuple[Callable[[Path], bool], Callable[[Path], Iterator[Released]]], ...] = (
    (Path.is_file, _cuda_l1),
    (lambda path: (path / "highlighted").is_dir(), _robust_kbench),
    (lambda path: any(path.glob("L[123]/*/original.py")), _kernelagent),
)
