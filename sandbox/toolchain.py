"""The compiler, torch and Python for extensions, and the light torch/extension.h that is made for them.

The stock header declares two thousand operators, pybind11, torch::nn and the JIT, for sources that use five. The light
one (`headers/light`) declares the common part, and the compiler wrapper adds the operators of a source
(`kernelwright_child.compiling`). It is text that suits any flags, without precompilation. Its plain functions
(`headers/glue`) are compiled from torch's own headers, once for optimised sources and once for others. The judge does
all of this outside the jail, without running a candidate's code.
"""

import contextlib
import hashlib
import importlib.metadata
import importlib.util
import json
import logging
import os
import platform
import re
import shlex
import shutil
import signal
import subprocess
import sys
import sysconfig
import threading
import time
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, Self

from kernelwright.problems.languages import LANGUAGES
from kernelwright.sandbox.locks import try_lock
from kernelwright.sandbox.logs import build_reason
from kernelwright.sandbox.machine import CHILD_FOLDER, CHILD_ROOT, processor_name
from kernelwright.sandbox.storage import MARK, all_entries, cache_root, is_there, write_atomically
from kernelwright.sandbox.verdict.errors import MachineError
from kernelwright.sandbox.workfolder import HeldFolder
from kernelwright_child.compiling import MAKING, are_optimised, is_being_made

LOG = logging.getLogger(__name__)

LIGHT, GLUE = (Path(__file__).with_name("headers") / name for name in ("light", "glue"))
"""Replacements of torch's headers and pybind11's templates, and the C++ sources to link with them."""
COMPILER_BYTES = 1500 * 2**20
"""Peak memory of a compilation of torch's headers, measured with g++ 12."""
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
    """One compiler with one torch and one Python, and the `folder` of files that depend on them."""

    compiler: str
    """The C++ compiler that torch uses."""
    is_gcc: bool
    nvcc: str | None
    """The nvcc that torch uses: of the toolkit in the environment, or on the path."""
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
        """Folder of the light header, named by a digest of its sources and this module."""
        parts = [path for top in (LIGHT, GLUE) for path in sorted(top.rglob("*.*"))]
        texts = [path.read_bytes() for path in (*parts, Path(__file__))]
        return self.folder / f"light-{hashlib.sha256(b''.join(texts)).hexdigest()[:8]}"

    def plan(self, memory_bytes: int, light: bool = True, cuda_architectures: str = "") -> dict[str, Any]:
        """Make the `shortcuts` of a builder's message for `kernelwright_child.compiling`; empty for none.

        `light`: whether to try the light header. Without it, every object file is byte for byte the stock one.
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
        """Write the compiler wrappers where children can only read; None where that fails.

        torch recognises a compiler by its name, so the one for C++ is called g++.
        """
        paths = {"cxx": self.folder / "bin" / "g++", "nvcc": self.folder / "bin" / "nvcc"}
        root = str(self.folder / "lib")
        if any(" " in str(path) or "'" in root for path in paths.values()):
            return None
        try:
            # A copy of the wrappers' module that builders can read in any jail.
            package = self.folder / "lib" / "kernelwright_child"
            _put(package / "__init__.py", "", 0o644)
            _put(package / "compiling.py", (CHILD_FOLDER / "compiling.py").read_text(), 0o644)
            for kind, path in paths.items():
                python = shlex.quote(sys.executable)
                _put(path, PROGRAM.format(python=python, root=json.dumps(root), kind=kind), 0o755)
            _try(paths["cxx"])
        except (OSError, subprocess.SubprocessError):
            return None
        return {kind: str(path) for kind, path in paths.items()}


def python_header() -> Path:
    """Return the path of this interpreter's Python.h, which torch/extension.h includes."""
    return Path(sysconfig.get_path("include", scheme="posix_prefix")) / "Python.h"


def require_headers(source: str, header: Path | None = None) -> None:
    """Raise `MachineError`, with the remedy, for a candidate whose build includes a missing Python.h.

    Debian's python3 lacks it, and the candidate would fail for that. A plain shared library does not need it.
    """
    # `load_inline` adds torch/extension.h by itself, and some languages compile a launcher.
    unasked = "load_inline" in source and "no_implicit_headers" not in source
    if unasked or INCLUDES_PYTHON.search(source):
        require_python_header("building this candidate", header)


def require_python_header(what: str, header: Path | None = None) -> None:
    """Raise `MachineError`, with the remedy, where Python.h, which `what` includes, is missing."""
    header = header or python_header()
    if not header.exists():
        raise MachineError(
            f"{what} needs Python's headers, and there is no {header}; "
            "install them (Debian: apt-get install python3-dev)"
        )


def shown_paths() -> list[str]:
    """Return the paths that a builder may read besides those of every child; create the toolchain's folder."""
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
    """Find this machine's toolchain by the environment; None without a compiler or torch. Runs the compiler."""
    compiler = shutil.which(os.environ.get("CXX", "c++"))
    torch = importlib.util.find_spec("torch")
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
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
        CHILD_ROOT.as_posix(),
    )
    digest = hashlib.sha256("\0".join(facts).encode()).hexdigest()[:20]
    return Toolchain(
        compiler=compiler,
        is_gcc="Free Software Foundation" in version,
        nvcc=shutil.which(f"{home}/bin/nvcc" if home else "nvcc"),
        linker=next((name for name in ("mold", "lld", "gold") if shutil.which(f"ld.{name}")), ""),
        torch_include=include,
        digest=digest,
        folder=cache_root() / "toolchains" / digest,
    )


def _version(compiler: str) -> str:
    try:
        done = subprocess.run([compiler, "--version"], capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout


@cache
def _try(compiler: Path) -> None:
    subprocess.run([compiler, "-dumpversion"], capture_output=True, timeout=20, check=True)  # as slow as a small build


def _put(path: Path, text: str, mode: int) -> None:
    if not path.exists() or path.read_text() != text:
        write_atomically(path, text, mode)


# The light header's missing parts, made during a build and completed in any case.

TIMEOUT_S = 3000
"""Wall time limit of one compiler on a busy machine."""
POLL_S = 0.05
LEVELS = {"plain": "-O0", "optimised": "-O2"}
STANDARD = re.compile(r"/c\+\+/[\w.]+/(\w+)$")


class MakingHeaders:
    """A context that makes parts of the light header during a block, each in a thread with a compiler.

    At the start each part gets a lock file, unless another process makes it. The block ends when all parts are
    complete, also after an error, but not after an interrupt. Nothing raises: parts that fail are absent.
    """

    def __init__(self, toolchain: Toolchain, names: list[str]) -> None:
        self._toolchain, self._folder = toolchain, toolchain.light
        self._names = names if toolchain.is_gcc else []
        self._threads: list[threading.Thread] = []
        self._running: set[subprocess.Popen[str]] = set()
        self._lock, self._stopped = threading.Lock(), False
        self._began = self._ended = 0.0
        self._held = contextlib.ExitStack()

    @property
    def seconds(self) -> float:
        """Time until all parts were made or given up; 0 where none was missing."""
        return self._ended - self._began

    def __enter__(self) -> Self:
        self._began = self._ended = time.perf_counter()
        try:  # a compiler that is killed leaves its files there
            self._temporary = self._held.enter_context(HeldFolder("making")) if self._names else Path()
            for name in self._names:
                if mark := self._held.enter_context(self._marked(name)):
                    self._threads.append(threading.Thread(target=self._make, args=(name, mark), daemon=True))
        except OSError as error:
            LOG.info("not all parts of the light header are made: %s", error)
        for thread in self._threads:
            thread.start()
        return self

    def is_going_on(self) -> bool:
        return any(is_being_made(str(self._folder / name)) for name in self._names)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            while (kind is None or issubclass(kind, Exception)) and any(one.is_alive() for one in self._threads):
                time.sleep(POLL_S)
        finally:
            with self._lock:
                self._stopped = True
                for process in self._running:
                    _end(process)
            for thread in self._threads:
                thread.join()
            self._held.close()
            if self._threads:
                all_entries().trim(keep=self._folder)

    @contextlib.contextmanager
    def _marked(self, name: str) -> Iterator[Path | None]:
        """Yield the lock file of a part, which lives as long as this process; None if another makes it."""
        path = self._folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        (self._folder / MARK).touch()
        mark = path.with_name(MAKING + path.name)
        with mark.open("w") as file:
            if not try_lock(file.fileno()):
                LOG.info("%s is not made here: another process is making it", name)
                yield None
                return
            mark.chmod(0o644)
            yield mark
            mark.unlink(missing_ok=True)

    def _make(self, name: str, mark: Path) -> None:
        try:
            if "/" in name:
                self._compile(self._folder / name)
            else:
                self._make_headers(self._folder / name)
        except (OSError, subprocess.SubprocessError) as error:
            said = error.stderr if isinstance(error, subprocess.CalledProcessError) else None
            LOG.info("%s of the light header was not made: %s", name, build_reason(said) if said else str(error))
        finally:
            mark.unlink(missing_ok=True)
            self._ended = time.perf_counter()

    def _make_headers(self, path: Path) -> None:
        """Make the light headers with the standard library's headers of the stock one, and list the missing macros."""
        with _aside(self._folder / "light") as light:
            shutil.copytree(LIGHT, light)
            command = self._command("-E", "-dM", "-x", "c++")
            listing = light / "listing.d"
            whole = self._toolchain.torch_include / "torch" / "extension.h"
            macros = _defined(self._run([*command, "-MD", "-MF", str(listing), str(whole)]))
            brought = {match[1] for word in listing.read_text().split() if (match := STANDARD.search(word))}
            listing.unlink()
            standard = "".join(f"#include <{name}>\n" for name in sorted(brought))
            (light / "kernelwright" / "standard.h").write_text(standard)
            core = light / "kernelwright" / "core.h"
            module = light / "kernelwright" / "module.h"
            first = self._command("-E", "-dM", "-x", "c++", before=("-isystem", str(light)))
            have = _defined(self._run([*first, "-include", str(core), str(module)]))
            for made in (light, *light.rglob("*")):  # a child may be of another user
                made.chmod(0o755 if made.is_dir() else 0o644)
        with _aside(path) as made:
            made.write_text("\n".join(sorted(macros - have)))
            made.chmod(0o644)

    def _compile(self, path: Path) -> None:
        source = GLUE / f"{path.stem}.cpp"
        with _aside(path) as made:
            level, light = LEVELS[path.parent.name], ("-isystem", str(LIGHT))
            self._run(self._command(level, "-c", str(source), "-o", str(made), before=light))
            made.chmod(0o644)

    def _command(self, *words: str, before: tuple[str, ...] = ()) -> list[str]:
        """Return the compiler's command; `before` are options for folders in front of torch's."""
        includes = [word for path in self._toolchain.include_folders for word in ("-isystem", path)]
        return [self._toolchain.compiler, *before, *includes, *self._toolchain.own_flags, *words]

    def _run(self, command: list[str]) -> str:
        environment = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LC_ALL": "C", "TMPDIR": str(self._temporary)}
        with self._lock:
            if self._stopped:
                raise subprocess.SubprocessError("it was given up")
            process = subprocess.Popen(
                command,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env=environment,
                cwd="/",
                process_group=0,
            )
            self._running.add(process)
        try:
            said, complaint = process.communicate(timeout=TIMEOUT_S)
        finally:
            with self._lock:
                _end(process)
                self._running.discard(process)
        if process.returncode:
            raise subprocess.CalledProcessError(process.returncode, command, said, complaint)
        return said


def _end(process: subprocess.Popen[str]) -> None:
    """Kill it with the compiler that g++ starts, which would keep its output open."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)


@contextlib.contextmanager
def _aside(path: Path) -> Iterator[Path]:
    """Yield a temporary path, which replaces the path when the block succeeds."""
    new = path.with_name(f".new-{path.name}")
    for old in (new, path):
        if old.is_dir():
            shutil.rmtree(old)
    try:
        yield new
        new.replace(path)
    finally:
        if new.is_dir():
            shutil.rmtree(new)
        new.unlink(missing_ok=True)


def _defined(listing: str) -> set[str]:
    return {re.split(r"\W", line.split(maxsplit=2)[1])[0] for line in listing.splitlines()}


FLAG = re.compile(r"(?<!\w)-O\w*")
MACROS = "macros"
"""The file with the macros that the light header lacks, made after the headers."""
OBJECTS = tuple(sorted(f"{path.stem}.o" for path in GLUE.glob("*.cpp")))
WITHOUT = re.compile(r"no_implicit_headers\s*=\s*True")
"""The argument that keeps `load_inline` from adding includes."""
EVERYTHING = (MACROS, *(f"{level}/{name}" for level in LEVELS for name in OBJECTS))


def missing_headers(toolchain: Toolchain, source: str) -> list[str]:
    """Return the missing parts that a candidate's extensions may need."""
    implied = "load_inline" in source and not WITHOUT.search(source)
    if not implied and "torch/extension.h" not in source:
        return []
    with contextlib.suppress(OSError):
        os.utime(toolchain.light)  # a renewed entry is removed last
    optimised = any(are_optimised([flag]) for flag in FLAG.findall(source))
    levels = [level for level in LEVELS if (level == "optimised") is optimised or (optimised and "cuda" in source)]
    bound = "functions" in source
    objects = [f"{level}/{name}" for level in levels for name in OBJECTS if bound or name != OBJECTS[0]]
    return _absent(toolchain, (MACROS, *objects))


def headers_are_ready(toolchain: Toolchain) -> bool:
    return not _absent(toolchain, EVERYTHING)


def prepare_headers(toolchain: Toolchain) -> bool:
    """Make all of the light header, some 40 s of one core and 4 MB; return whether it exists. Never raises."""
    with MakingHeaders(toolchain, _absent(toolchain, EVERYTHING)):
        pass
    return headers_are_ready(toolchain)


def _absent(toolchain: Toolchain, names: Iterable[str]) -> list[str]:
    return [name for name in names if not is_there(toolchain.light / name)]
