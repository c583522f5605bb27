"""The one folder that a candidate's children may write to."""

import os
import shutil
import sys
import tempfile
from pathlib import Path

from sandbox.errors import MachineError

KEPT_VARIABLES = ("CUDA_HOME", "CUDA_VISIBLE_DEVICES", "CC", "CXX", "LD_LIBRARY_PATH", "NVIDIA_VISIBLE_DEVICES")
"""What a child's environment takes over from the user's, beside PATH; no key or token is among them."""


STEADY = {
    "OMP_PROC_BIND": "close",
    "OMP_PLACES": "threads",
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(2**40),
}


class WorkFolder:
    """A private temporary folder with the places that compilers and torch want, removed at the end."""

    def __init__(self) -> None:
        try:
            self.path = Path(tempfile.mkdtemp(prefix="kernelwright-"))
            for name in ("home", "tmp", "build", "triton"):
                (self.path / name).mkdir()
        except OSError as error:
            raise MachineError(
                f"no work folder can be made in {tempfile.gettempdir()} ({error.strerror}); "
                "free some space or set TMPDIR"
            ) from None

    def write(self, name: str, text: str) -> Path:
        """Put a text file into the folder."""
        path = self.path / name
        try:
            path.write_text(text, encoding="utf-8", errors="surrogatepass")
        except OSError as error:
            raise MachineError(f"{path} can not be written ({error.strerror}); free some space or set TMPDIR") from None
        return path

    def give_to(self, user: int) -> None:
        """Make another user the owner of the folder and all that is in it; needs root."""
        for path in (self.path, *self.path.rglob("*")):
            os.chown(path, user, user, follow_symlinks=False)

    def environment(self, threads: int, steady: bool = False) -> dict[str, str]:
        """The whole environment of a child: nothing else of the user's is passed on.

        `steady` is for children that are timed: OpenMP threads stay on their cores, and freed memory is kept for the
        next call. Without it a call that is stopped and continued wandered between 2.5 and 31 ms, with it between 3.8
        and 4.9 ms: two threads that wake on one core, and a page fault for every 4 KiB of each fresh result.
        """
        kept = {name: os.environ[name] for name in KEPT_VARIABLES if name in os.environ}
        tools = [str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]
        return kept | {
            "PATH": os.pathsep.join(tools),
            "HOME": str(self.path / "home"),
            "TMPDIR": str(self.path / "tmp"),
            "LANG": "C.UTF-8",
            "TORCH_EXTENSIONS_DIR": str(self.path / "build"),
            "TRITON_CACHE_DIR": str(self.path / "triton"),
            "OMP_NUM_THREADS": str(threads),
            "MKL_NUM_THREADS": str(threads),
            "MAX_JOBS": str(threads),
            "PYTHONDONTWRITEBYTECODE": "1",
            **(STEADY if steady else {}),
        }

    def close(self) -> None:
        """Remove the folder with all that is in it."""
        shutil.rmtree(self.path, ignore_errors=True)
