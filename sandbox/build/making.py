"""Making what of the light header is not there, beside a build: compilers that are ended when nobody waits for them."""

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
from collections.abc import Iterator
from pathlib import Path

from kernelwright.sandbox.build.diagnose import build_reason
from kernelwright.sandbox.build.toolchain import GLUE, LIGHT, Toolchain
from kernelwright.sandbox.machine.cache import MARK, all_entries
from kernelwright_child.building.compiling import MAKING

LOG = logging.getLogger("kernelwright.sandbox.build")
TIMEOUT_S = 300
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

    @property
    def seconds(self) -> float:
        """How long it took until all was there or given up; 0 where nothing was missing."""
        return self._ended - self._began

    def start(self) -> None:
        """Mark what is being made, and begin."""
        self._began = self._ended = time.perf_counter()
        held = contextlib.ExitStack()
        for name in self._names:
            try:
                mark = held.enter_context(self._marked(name))
            except OSError as error:
                LOG.info("%s is not made: %s", name, error)
                continue
            if mark is not None:
                thread = threading.Thread(target=self._make, args=(name, mark), daemon=True)
                self._threads.append(thread)
        for thread in self._threads:
            thread.start()
        self._held = held

    def wait(self) -> None:
        """Until all of it is made."""
        for thread in self._threads:
            thread.join()

    def stop(self) -> None:
        """Give up what is not done."""
        with self._lock:
            self._stopped = True
            for process in self._running:
                _end(process)
        self.wait()
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
            LOG.info("%s for torch's header was not made: %s", name, _reason(error))
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
            _readable(light)
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
        environment = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LC_ALL": "C"}
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


def _readable(folder: Path) -> None:
    """A child may be another user."""
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)


def _defined(listing: str) -> set[str]:
    """The macros of what -dM has printed."""
    return {re.split(r"\W", line.split(maxsplit=2)[1])[0] for line in listing.splitlines()}


def _reason(error: Exception) -> str:
    """Why nothing came of it: of a compiler, also the line that decided."""
    said = error.stderr if isinstance(error, subprocess.CalledProcessError) else None
    return build_reason(said) if said else str(error)
