"""A reference under torch.compile, and what its compiler makes, kept from one judging to the next.

Compiling takes from seconds to minutes, and gives the same for the same problem, device, versions and mode. The judge
copies what an earlier child has left into the work folder of the next one, before it starts; the child's own compiler
(TorchInductor) finds it there as its cache. Neither that child nor any other ever sees where it is kept, and a child
that runs a candidate has no such folder at all.
"""

import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING

from kernelwright.problems import Problem
from kernelwright.sandbox.calls.reference import Form, Precision, ReferenceSession
from kernelwright.sandbox.jail.zygote import ZYGOTES
from kernelwright.sandbox.storage import Bounds, FolderStore, digest_of
from kernelwright.sandbox.timing.baseline_facts import place_of, processor_kind
from kernelwright.sandbox.toolchain import require_python_header
from kernelwright.sandbox.verdict.settings import CompileMode, Settings
from kernelwright.sandbox.workfolder import WorkFolder, shared_environment

if TYPE_CHECKING:
    from kernelwright.sandbox.calls.device import SharedInputs
    from kernelwright.sandbox.tensors import Values

LOG = logging.getLogger("kernelwright.sandbox.timing")
LIMIT_BYTES = 2 * 2**30
BOUNDS = Bounds(bytes=2**29, files=8192, depth=8)
FORMAT = "3"


class CompilerFolder(WorkFolder):
    """A work folder with one more place to write to, the cache of torch's compiler.

    Triton's own cache stays where it is in every work folder: it names its files by absolute paths, so it is of no use
    elsewhere, and the compiler's cache holds all kernels that it has chosen.
    """

    imports = ("torch._dynamo", "torch._inductor.compile_fx")
    """The compiler itself, which takes seconds to import: once in place of for each problem."""

    def __init__(self) -> None:
        super().__init__()
        self.compiler = self.path / "compiler"
        self.compiler.mkdir(mode=0o700)

    def places(self, *without: str) -> list[str]:
        return [*super().places(*without), str(self.compiler)]

    def environment(self, threads: int, steady: bool = False) -> dict[str, str]:
        """As of any work folder; torch.compile is told of the cache."""
        return super().environment(threads, steady) | {"TORCHINDUCTOR_CACHE_DIR": str(self.compiler)}

    def give_to(self, user: int) -> None:
        """As of any work folder, with all that was put into the cache; no child has run yet, so there are no links."""
        is_new = self.user is None
        super().give_to(user)
        for top, folders, files in os.walk(self.compiler) if is_new else ():
            for name in (*folders, *files):
                os.chown(Path(top) / name, user, user, follow_symlinks=False)


class CompiledStore(FolderStore):
    """What torch.compile has made, by all that it depends on; the longest unused goes where it grows too large."""

    def __init__(self, limit_bytes: int = LIMIT_BYTES) -> None:
        super().__init__("compiled", limit_bytes, BOUNDS)

    @staticmethod
    def key(problem: Problem, settings: Settings, mode: CompileMode, precision: Precision = "strict") -> str:
        """Problem, device, versions, mode; and the number of threads, which is written into code for processors."""
        place, baseline = place_of(settings), Form(mode, precision=precision).baseline
        facts = [FORMAT, problem.digest, baseline, str(settings.threads), processor_kind(), place.device]
        return digest_of(facts + [f"{name}={value}" for name, value in sorted(place.versions.items())])


def begin_compiler(settings: Settings) -> None:
    """Have the process import the compiler that compiled references are forked from, while others start."""
    ZYGOTES.find(shared_environment(settings.threads, steady=True), CompilerFolder.imports)


def compiled_reference(
    problem: Problem,
    settings: Settings,
    mode: CompileMode,
    inputs: "SharedInputs | Values | None" = None,
    precision: Precision = "strict",
) -> ReferenceSession:
    """Start the reference under a mode of torch.compile; it has compiled, or found what was compiled before.

    Raises what `ReferenceSession` does, in words that name the mode, and `MachineError` without Python's headers.
    """
    require_python_header("torch.compile")
    store, folder = CompiledStore(), CompilerFolder()
    key = store.key(problem, settings, mode, precision)
    store.restore(key, folder.compiler)
    session = ReferenceSession(problem, settings, Form(mode, precision=precision), folder, inputs)
    try:
        session.compile()
        if session.compilation.is_new:
            made = session.compilation.made
            LOG.info("torch.compile (%s) compiled %d graphs anew: what was kept is replaced", mode, made)
            store.forget(key)  # it was of no use, or there was none
            store.keep(key, folder.compiler)
    except BaseException:
        session.close()
        raise
    return session
