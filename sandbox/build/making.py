"""The light torch/extension.h and the objects that belong to it: made by the judge once, read by builders.

The stock header brings g++ and nvcc two thousand operators, pybind11, torch::nn and the JIT, for sources that name
five. The light one (`light`) has what nearly all of them use; the compiler's stand-in adds the operators that a source
names (`kernelwright_child.compiling`). It is text: whatever the flags, there is nothing to precompile. What it
replaces by plain functions (`glue`) is compiled from torch's own headers: one set for sources that are optimised, one
for those that are not. What is missing is made beside a build, and whatever becomes of that it is made to its end.
"""

import contextlib
import fcntl
import logging
import os
import re
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Self

from kernelwright.sandbox.build.build_store import BuildStore, build_reason
from kernelwright.sandbox.build.toolchain import GLUE, LIGHT, Toolchain, toolchain
from kernelwright.sandbox.machine.cache import LIMIT_VARIABLE, MARK, all_entries, cache_root, is_there
from kernelwright.sandbox.machine.workfolder import HeldFolder
from kernelwright_child.compiling import MAKING, are_optimised, is_being_made

LOG = logging.getLogger("kernelwright.sandbox.build")
TIMEOUT_S = 3000
"""By the wall clock, of one compiler of ours: the machine may be busy."""
POLL_S = 0.05
LEVELS = {"plain": "-O0", "optimised": "-O2"}
STANDARD = re.compile(r"/c\+\+/[\w.]+/(\w+)$")


class Making:
    """What is being made, each in a thread with a compiler of its own."""

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
        """How long it took until all was there or given up; 0 where nothing was missing."""
        return self._ended - self._began

    def __enter__(self) -> Self:
        self._began = self._ended = time.perf_counter()
        try:  # a compiler that is killed leaves its files there
            self._temporary = self._held.enter_context(HeldFolder("making")) if self._names else Path()
            for name in self._names:
                if mark := self._held.enter_context(self._marked(name)):
                    self._threads.append(threading.Thread(target=self._make, args=(name, mark), daemon=True))
        except OSError as error:
            LOG.info("not all is made for torch's header: %s", error)
        for thread in self._threads:
            thread.start()
        return self

    def is_going_on(self) -> bool:
        """Whether any of it is being made, here or by another process."""
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
        """The mark that it is being made, which the lock on it says to be of a living process; None if of another."""
        path = self._folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        (self._folder / MARK).touch()
        mark = path.with_name(MAKING + path.name)
        with mark.open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
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
            # Why nothing came of it: of a compiler, also the line that decided.
            said = error.stderr if isinstance(error, subprocess.CalledProcessError) else None
            LOG.info("%s for torch's header was not made: %s", name, build_reason(said) if said else str(error))
        finally:
            mark.unlink(missing_ok=True)
            self._ended = time.perf_counter()

    def _make_headers(self, path: Path) -> None:
        """The light headers, with those of the standard library that the stock one brings, and the macros they lack."""
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
            for made in (light, *light.rglob("*")):  # a child may be another user
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
        """The compiler with these words; `before` are folders that are looked at before those of torch."""
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
    """With the compiler proper, which g++ starts and which would hold its output open."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)


@contextlib.contextmanager
def _aside(path: Path) -> Iterator[Path]:
    """Another name, whose file or folder takes the place of the path when the block has ended well."""
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
"""The file with the macros that the light header lacks; where it is, the headers are."""
OBJECTS = tuple(sorted(f"{path.stem}.o" for path in GLUE.glob("*.cpp")))
WITHOUT = re.compile(r"no_implicit_headers\s*=\s*True")
"""Words by which `load_inline` includes nothing of its own."""
EVERYTHING = (MACROS, *(f"{level}/{name}" for level in LEVELS for name in OBJECTS))


class HeaderShelf:
    """The light header of one toolchain. Nothing here raises: what can not be made is not there."""

    def __init__(self, toolchain: Toolchain) -> None:
        self._toolchain = toolchain
        self._folder = toolchain.light

    @property
    def folder(self) -> Path:
        return self._toolchain.folder

    def missing(self, source: str) -> list[str]:
        """What of the shelf a candidate's extensions may be built with and is not there, by its name."""
        implied = "load_inline" in source and not WITHOUT.search(source)
        if not implied and "torch/extension.h" not in source:
            return []
        with contextlib.suppress(OSError):
            os.utime(self._folder)  # it is in use, so others go before it where space is short
        optimised = any(are_optimised([flag]) for flag in FLAG.findall(source))
        levels = [level for level in LEVELS if (level == "optimised") is optimised or (optimised and "cuda" in source)]
        bound = "functions" in source
        objects = [f"{level}/{name}" for level in levels for name in OBJECTS if bound or name != OBJECTS[0]]
        return self._not_there((MACROS, *objects))

    def is_ready(self) -> bool:
        return not self._not_there(EVERYTHING)

    def prepare(self) -> bool:
        """Make all of it, which takes about 40 s of one core and 4 MB; whether it is there afterwards."""
        with self.making(self._not_there(EVERYTHING)):
            pass
        return self.is_ready()

    def _not_there(self, names: Iterable[str]) -> list[str]:
        return [name for name in names if not is_there(self._folder / name)]

    def making(self, names: list[str]) -> Making:
        """Have these made beside a block, which ends when they are there, also where it fails; not where it is ended.

        When the block begins, each either is marked as being made, or is none of this process's affair.
        """
        return Making(self._toolchain, names)


GIB = 2**30


def shortcuts_found() -> str | None:
    """The compiler, what is kept for it and where; None where there is no compiler to shorten anything for."""
    found = toolchain()
    if found is None or not found.is_gcc:
        return None
    everything = all_entries()
    linker = f", linked by {found.linker}" if found.linker else ""
    header = "torch's light header" if HeaderShelf(found).is_ready() else "no light header of torch's yet"
    return (
        f"{found.compiler}{linker}; {header} and {len(BuildStore())} finished builds; all that is kept takes "
        f"{everything.size_bytes() / GIB:.1f} of {everything.limit_bytes / GIB:.1f} GiB ({LIMIT_VARIABLE}) in "
        f"{cache_root()}"
    )
