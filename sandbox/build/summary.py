"""What the shortcuts amount to on this machine, in one line, for `doctor`."""

from kernelwright.sandbox.build.build_store import BuildStore
from kernelwright.sandbox.build.headers import HeaderShelf
from kernelwright.sandbox.build.toolchain import toolchain
from kernelwright.sandbox.machine.cache import LIMIT_VARIABLE, all_entries, cache_root

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
