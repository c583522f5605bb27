"""What the shortcuts amount to on this machine, in one line, for `doctor`."""

from kernelwright.sandbox.build.build_store import BuildStore
from kernelwright.sandbox.build.headers import HeaderShelf
from kernelwright.sandbox.build.toolchain import toolchain
from kernelwright.sandbox.machine.cache import cache_root

GIB = 2**30


def shortcuts_found() -> str | None:
    """The compiler, what is kept for it and where; None where there is no compiler to shorten anything for."""
    found = toolchain()
    if found is None or not found.is_gcc:
        return None
    shelf, store = HeaderShelf(found), BuildStore()
    linker = f", linked by {found.linker}" if found.linker else ""
    return (
        f"{found.compiler}{linker}; {len(shelf)} precompiled headers ({shelf.size_bytes() / GIB:.1f} GiB) and "
        f"{len(store)} finished builds ({store.size_bytes() / GIB:.1f} GiB) in {cache_root()}"
    )
