"""What makes builds quick without touching candidates: a light header of torch's, and a store of finished builds.

Everything here is done by the judge, outside the jail, and runs no candidate's code. Children get the headers to read
and finished builds as copies; they can write to neither. What a child says about its build is read as a claim.
"""

from kernelwright.sandbox.build.build_store import BuildRecord, BuildStore, Compilation, read_record
from kernelwright.sandbox.build.making import HeaderShelf, shortcuts_found
from kernelwright.sandbox.build.toolchain import (
    Toolchain,
    python_header,
    require_headers,
    require_python_header,
    toolchain,
)

__all__ = [
    "BuildRecord",
    "BuildStore",
    "Compilation",
    "HeaderShelf",
    "Toolchain",
    "python_header",
    "read_record",
    "require_headers",
    "require_python_header",
    "shortcuts_found",
    "toolchain",
]
