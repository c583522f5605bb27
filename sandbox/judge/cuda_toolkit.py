"""Where the CUDA toolkit's programs lie, and what of the file system they need to run in a jail."""

import os
import shutil
from pathlib import Path

from kernelwright.sandbox.verdict.errors import MachineError

PLACES = ("/opt/nvidia/nsight-compute/*", "/usr/local/cuda/bin", "/usr/local/cuda/compute-sanitizer")
WHOLE = "/opt/nvidia/nsight-compute"
"""What `ncu` of a toolkit's `bin` is a link or a script to."""
SANITIZE, PROFILE = "--sanitize", "--profile"
TOOLS = {SANITIZE: "compute-sanitizer", PROFILE: "ncu"}
HOW_TO_GET = {
    "compute-sanitizer": "it comes with the CUDA toolkit; install that, or put it on the PATH",
    "ncu": "install Nsight Compute, or put it on the PATH",
}


def program(name: str) -> str | None:
    """Path of a tool of the CUDA toolkit; None where it is not installed."""
    found = shutil.which(name)
    if found:
        return found
    below = (path for pattern in PLACES for path in Path("/").glob(f"{pattern.lstrip('/')}/{name}"))
    return next((str(path) for path in sorted(below, reverse=True) if path.is_file()), None)


def needed(option: str) -> str:
    """Path of the tool behind an option of the command line; `MachineError` where it is not there."""
    name = TOOLS[option]
    path = program(name)
    if path is None:
        raise MachineError(f"{option} needs {name}, which is not found; {HOW_TO_GET[name]}")
    return path


def require_tools(sanitize: bool, profile: bool) -> None:
    """Raise `MachineError`, with the remedy, where a tool that is asked for is not installed here."""
    for option, asked in ((SANITIZE, sanitize), (PROFILE, profile)):
        if asked:
            needed(option)


def folders(path: str) -> tuple[str, ...]:
    """What must be readable for this program to run: where it really lies, and what it may be a link or script to."""
    real = Path(path).resolve()
    top = real.parent.parent if real.parent.name == "bin" else real.parent
    home = Path(os.path.expanduser("~"))  # noqa: PTH111 - Path.home() raises where the user has no account
    # Neither the root nor somebody's home is shown for the sake of one program.
    own = str(real) if top in (Path("/"), home, *home.parents) else str(top)
    return (own, WHOLE) if os.path.isdir(WHOLE) else (own,)  # noqa: PTH112
