"""Precompiled torch/extension.h, some for each set of flags: made by the judge, read by builders.

The whole one is the stock text. The narrow one leaves out what few candidates use (torch::nn, the optimisers, the data
loader, the JIT) and keeps every header of the standard library that the whole one brings: with fewer of those,
`std::abs(-1.5f)` would quietly become another function. The lean one leaves out pybind11 as well, whose templates take
half the time of a narrow compilation: what `load_inline` writes to bind functions is bound by an object file that lies
beside the header, compiled with the same flags.
"""

import contextlib
import fcntl
import json
import logging
import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path

from kernelwright.sandbox.build.build_record import Compilation, Header
from kernelwright.sandbox.build.diagnose import build_reason
from kernelwright.sandbox.build.toolchain import BINDING, Toolchain, folder_of
from kernelwright.sandbox.machine.cache import Cache
from kernelwright_child.building import flags as kinds

LOG = logging.getLogger("kernelwright.sandbox.build")
LIMIT_BYTES = 8 * 2**30
MAKING_TIMEOUT_S = 900
MAX_COUNTED = 1000
"""Sets of flags that are counted; then counting begins anew."""
WORTH_IT = 2
"""Compilations that would have used a header before it is made: it costs about as much as it saves twice."""
COMMON = ((), ("-O3",), ("-O3", "-fopenmp"), ("-O3", "-march=native", "-fopenmp"))
"""What candidates ask for most."""
NARROW = (
    "torch/types.h",
    "torch/csrc/Exceptions.h",
    "torch/csrc/utils/pybind.h",
    "torch/utils.h",
    "ATen/Parallel.h",
    "ATen/TensorIndexing.h",
)
LEAN = ("Python.h", "torch/types.h", "torch/utils.h", "ATen/Parallel.h", "ATen/TensorIndexing.h")
WHOLE_TEXT = """#ifndef KERNELWRIGHT_WHOLE_HEADER
#define KERNELWRIGHT_WHOLE_HEADER
#include_next <torch/extension.h>
#endif
"""
STANDARD = re.compile(r"/c\+\+/[\w.]+/(\w+)$")


class HeaderShelf:
    """The precompiled headers of one toolchain. Nothing here raises: what can not be made is not there.

    The limit is for those of all toolchains together: with another torch or compiler the old ones are of no use.
    """

    def __init__(self, toolchain: Toolchain, limit_bytes: int = LIMIT_BYTES) -> None:
        self._toolchain = toolchain
        self._root = toolchain.folder / "headers"
        self._cache = Cache(toolchain.folder.parent, limit_bytes, depth=4)

    @property
    def folder(self) -> Path:
        """What builders have to be shown, read-only: the headers and the stand-ins for the compilers."""
        return self._toolchain.folder

    def has(self, flags: Iterable[str], header: Header) -> bool:
        """Whether the header for these flags is there."""
        return self._cache.use(self._name(list(flags), header)) is not None

    def prepare(self, flags: Iterable[str] = (), header: Header = "lean") -> bool:
        """Make the header for what a candidate asks for beside torch's own flags; whether it is there afterwards.

        About 30 s of one core and 0.5 GB for the lean or the narrow one, 40 s and 0.8 GB for the whole one. Flags that
        could name a file or a program are refused.
        """
        wanted = kinds.relevant([*self._toolchain.own_flags, *flags])
        if wanted is None:
            LOG.info("no %s header is made for flags that may name a file or a program: %s", header, " ".join(flags))
            return False
        return self._make(wanted, header)

    def learn(self, compilations: Iterable[Compilation]) -> bool:
        """Count what compilations would have used, and make the first header that is worth it; takes its time then.

        Whether it was tried to make one.

        Call it in a build's turn, when nothing is timed on these cores. The compilations are those of one candidate, as
        its child claims: flags are checked again, none counts twice, and the worst that false claims of several
        candidates can do is to waste time.
        """
        known = (one for one in compilations if one.flags is not None and kinds.is_harmless(list(one.flags)))
        wanted = dict.fromkeys((one.flags or (), one.header) for one in known)
        missing = [(list(flags), header) for flags, header in wanted if not self.has(flags, header)]
        worth_it = [one for one in missing if self._count(*one) >= WORTH_IT]
        if worth_it:
            self._make(*worth_it[0])
        return bool(worth_it)

    def size_bytes(self) -> int:
        """What all headers take, of other toolchains too."""
        return self._cache.size_bytes()

    def __len__(self) -> int:
        return len(self._cache.entries())

    def _name(self, flags: list[str], header: Header) -> str:
        return f"{self._toolchain.digest}/headers/{kinds.digest(flags)}/{folder_of(header)}"

    def _count(self, flags: list[str], header: Header) -> int:
        """One more compilation that would have used this header; how many there were."""
        path = self._root / "wanted" / f"{kinds.digest(flags)}.{header}"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if not path.exists() and len(list(path.parent.iterdir())) >= MAX_COUNTED:
                shutil.rmtree(path.parent)
                path.parent.mkdir()
            with path.open("ab") as file:
                file.write(b".")
                return file.tell()
        except OSError:
            return 0

    def _make(self, flags: list[str], header: Header) -> bool:
        if not self._toolchain.is_gcc:
            LOG.info("no %s header is made: %s is not GCC", header, self._toolchain.compiler)
            return False
        name = self._name(flags, header)
        try:
            with self._lock(name) as mine:
                if not mine:
                    LOG.info("the %s header is not made here: another process is making it", header)
                elif not self.has(flags, header):
                    with self._cache.making(name) as folder:
                        self._compile(folder, flags, header)
        except (OSError, subprocess.SubprocessError) as error:
            LOG.info("the %s header for %s was not made: %s", header, " ".join(flags), _reason(error))
        return self.has(flags, header)

    @contextlib.contextmanager
    def _lock(self, name: str) -> Iterator[bool]:
        """Whether this process is the one that makes it."""
        self._root.mkdir(parents=True, exist_ok=True)
        with (self._root / f".lock-{name.replace('/', '-')}").open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                yield False
                return
            yield True

    def _compile(self, folder: Path, flags: list[str], kind: Header) -> None:
        header = folder / "torch" / "extension.h"
        header.parent.mkdir()
        header.write_text(WHOLE_TEXT if kind == "whole" else self._shorter_text(flags, kind))
        includes = [word for path in self._toolchain.include_folders for word in ("-isystem", path)]
        common = [self._toolchain.compiler, *includes, *flags]
        if kind == "lean":
            shutil.copytree(BINDING, folder / BINDING.name)
            source = folder / BINDING.name / "binding.cpp"
            self._run([*common, "-c", str(source), "-o", str(folder / "binding.o")])
        self._run([*common, "-x", "c++-header", str(header), "-o", f"{header}.gch"])
        probe = folder / "probe.cpp"
        probe.write_text("#include <torch/extension.h>\n")
        use = ["-isystem", str(folder), "-Winvalid-pch", "-Werror=invalid-pch", "-fsyntax-only", str(probe)]
        self._run([common[0], *use[:2], *common[1:], *use[2:]])
        (folder / "entry.json").write_text(json.dumps({"flags": flags, "way": kind}))
        for path in folder.rglob("*"):
            path.chmod(0o755 if path.is_dir() else 0o644)  # a child may be another user

    def _shorter_text(self, flags: list[str], kind: Header) -> str:
        """The narrow or lean header's text: torch's few, and the standard library's that the whole one would bring."""
        includes = [word for path in self._toolchain.include_folders for word in ("-isystem", path)]
        whole = self._toolchain.torch_include / "torch" / "extension.h"
        listing = self._run([self._toolchain.compiler, *includes, *flags, "-M", "-x", "c++", str(whole)])
        brought = {match[1] for word in listing.split() if (match := STANDARD.search(word))}
        lines = [f"#include <{name}>" for name in (*(LEAN if kind == "lean" else NARROW), *sorted(brought))]
        lines += [f'#include "../{BINDING.name}/module.h"'] if kind == "lean" else []
        guard = f"KERNELWRIGHT_{kind.upper()}_HEADER"
        return "\n".join([f"#ifndef {guard}", f"#define {guard}", *lines, "#endif\n"])

    @staticmethod
    def _run(command: list[str]) -> str:
        environment = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LC_ALL": "C"}
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=MAKING_TIMEOUT_S, check=True, env=environment, cwd="/"
        )
        return done.stdout


def _reason(error: Exception) -> str:
    """Why nothing came of it: of a compiler, also the line that decided."""
    said = error.stderr if isinstance(error, subprocess.CalledProcessError) else None
    return build_reason(said) if said else str(error)
