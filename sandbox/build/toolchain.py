"""The compiler, torch and Python that extensions are built with, and what a builder is told about them."""

import hashlib
import importlib.metadata
import importlib.util
import json
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from kernelwright.problems.languages import LANGUAGES
from kernelwright.sandbox.machine import identity as child_package
from kernelwright.sandbox.machine.cache import cache_root
from kernelwright.sandbox.machine.identity import processor_name
from kernelwright.sandbox.verdict.errors import MachineError

LIGHT, GLUE = Path(__file__).with_name("light"), Path(__file__).with_name("glue")
"""What stands in for torch's headers and pybind11's templates, and what that is linked with; C++."""
COMPILER_BYTES = 1500 * 2**20
"""What one compilation of torch's headers takes at its height; measured with g++ 12."""
PROGRAM = """#!/bin/sh
exec {python} -I -S -c 'import sys; sys.path.insert(0, {root})
from kernelwright_child.compiling import main; main(sys.argv[1:])' {kind} "$@"
"""
LAUNCHERS = "|".join(one.module for one in LANGUAGES.values() if one.needs_python_header)
INCLUDES_PYTHON = re.compile(
    r"#\s*include\s*[<\"](?:torch/(?:extension|python)\.h|pybind11/|Python\.h)"
    rf"|^\s*(?:import|from) (?:{LAUNCHERS})\b",
    re.M,
)


class Toolchain(NamedTuple):
    """One compiler with one torch and one Python. Its `folder` holds all that depends on these."""

    compiler: str
    """The C++ compiler that torch would take."""
    is_gcc: bool
    nvcc: str | None
    linker: str
    """The name for -fuse-ld of a fast linker, or empty."""
    torch_include: Path
    digest: str
    folder: Path

    @property
    def include_folders(self) -> tuple[str, ...]:
        api = self.torch_include / "torch" / "csrc" / "api" / "include"
        return (str(self.torch_include), str(api), sysconfig.get_path("include", scheme="posix_prefix"))

    @property
    def own_flags(self) -> tuple[str, ...]:
        text = (self.torch_include.parent / "utils" / "cpp_extension.py").read_text()
        standard = re.search(r"-std=c\+\+\d\d", text)
        return ("-DTORCH_API_INCLUDE_EXTENSION_H", "-fPIC", *([standard[0]] if standard else []))

    @property
    def light(self) -> Path:
        """Where the light header lies, which changes with our own part of it and with how it is made."""
        parts = [path for top in (LIGHT, GLUE) for path in sorted(top.rglob("*.*"))]
        texts = [path.read_bytes() for path in (*parts, Path(__file__).with_name("making.py"))]
        return self.folder / f"light-{hashlib.sha256(b''.join(texts)).hexdigest()[:8]}"

    def plan(self, memory_bytes: int, light: bool = True, cuda_architectures: str = "") -> dict[str, Any]:
        """What a builder's message carries as `shortcuts`, see `kernelwright_child.compiling`; empty where
        there are none.

        `light`: whether the light header is tried. Without, every object file is byte for byte the stock one.
        """
        programs = self._programs() if self.is_gcc else None
        if programs is None:
            return {}
        return {
            "cxx": self.compiler,
            "nvcc": self.nvcc,
            "linker": self.linker,
            "light": str(self.light) if light else "",
            "torch_include": str(self.torch_include),
            "known_folders": [os.path.realpath(path) for path in self.include_folders],
            "programs": programs,
            "jobs": max(1, min(len(os.sched_getaffinity(0)), memory_bytes // COMPILER_BYTES)),
            "cuda_architectures": cuda_architectures,
        }

    def _programs(self) -> dict[str, str] | None:
        """The programs that stand in for the compilers, written where children can only read; None where they can not.

        torch knows a compiler by its name, so the one for C++ is called g++.
        """
        paths = {"cxx": self.folder / "bin" / "g++", "nvcc": self.folder / "bin" / "nvcc"}
        root = str(self.folder / "lib")
        if any(" " in str(path) or "'" in root for path in paths.values()):
            return None
        try:
            # What the programs import, copied to where builders can read it whatever jail they are in.
            package = self.folder / "lib" / "kernelwright_child"
            _put(package / "__init__.py", "", 0o644)
            for name in ("compiling.py", "compile_errors.py"):
                _put(package / name, (child_package.FOLDER / name).read_text(), 0o644)
            for kind, path in paths.items():
                python = shlex.quote(sys.executable)
                _put(path, PROGRAM.format(python=python, root=json.dumps(root), kind=kind), 0o755)
            done = subprocess.run([paths["cxx"], "-dumpversion"], capture_output=True, timeout=20, check=False)
        except (OSError, subprocess.TimeoutExpired):
            return None
        return {kind: str(path) for kind, path in paths.items()} if done.returncode == 0 else None


def python_header() -> Path:
    """Where this interpreter's Python.h lies, or should: torch/extension.h includes it."""
    return Path(sysconfig.get_path("include", scheme="posix_prefix")) / "Python.h"


def require_headers(source: str, header: Path | None = None) -> None:
    """Raise `MachineError`, with the remedy, for a candidate whose build includes Python.h where there is none.

    Debian's python3 comes without it, and the candidate would be blamed for that. One that builds a plain shared
    library does not need it.
    """
    # By its own words: `load_inline` adds torch/extension.h unasked, and some languages compile a launcher.
    unasked = "load_inline" in source and "no_implicit_headers" not in source
    if unasked or INCLUDES_PYTHON.search(source):
        require_python_header("building this candidate", header)


def require_python_header(what: str, header: Path | None = None) -> None:
    """Raise `MachineError`, with the remedy, where there is no Python.h, which `what` includes."""
    header = header or python_header()
    if not header.exists():
        raise MachineError(
            f"{what} needs Python's headers, and there is no {header}; "
            "install them (Debian: apt-get install python3-dev)"
        )


def shown_paths() -> list[str]:
    """What a builder has to be shown, read-only, beside what every child sees; the folder is made where it is not."""
    found = toolchain()
    if found is None or not found.is_gcc:
        return []
    try:
        found.folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return []
    return [str(found.folder)]


@cache
def toolchain() -> Toolchain | None:
    """This machine's, by its environment; None without a compiler or torch. It asks the compiler for its version."""
    compiler = shutil.which(os.environ.get("CXX", "c++"))
    torch = importlib.util.find_spec("torch")
    if compiler is None or torch is None or torch.origin is None:
        return None
    include = Path(torch.origin).parent / "include"
    version = _version(compiler)
    header = include / "torch" / "extension.h"
    facts = (
        os.path.realpath(compiler),
        version,
        importlib.metadata.version("torch"),
        str(include),
        str(header.stat().st_mtime_ns) if header.exists() else "",
        sys.version,
        sysconfig.get_path("include"),
        platform.machine(),
        processor_name(),  # for -march=native
        child_package.ROOT.as_posix(),
    )
    digest = hashlib.sha256("\0".join(facts).encode()).hexdigest()[:20]
    return Toolchain(
        compiler=compiler,
        is_gcc="Free Software Foundation" in version,
        nvcc=_nvcc(),
        linker=next((name for name in ("mold", "lld", "gold") if shutil.which(f"ld.{name}")), ""),
        torch_include=include,
        digest=digest,
        folder=cache_root() / "toolchains" / digest,
    )


def _nvcc() -> str | None:
    """The one that torch takes: of the toolkit that the environment names, or of the one on the path."""
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    if home:
        return shutil.which(str(Path(home) / "bin" / "nvcc"))
    return shutil.which("nvcc")


def _version(compiler: str) -> str:
    try:
        done = subprocess.run([compiler, "--version"], capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout


def _put(path: Path, text: str, mode: int) -> None:
    if path.exists() and path.read_text() == text:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f".{path.name}-{os.getpid()}")
    new.write_text(text)
    new.chmod(mode)
    new.replace(path)
