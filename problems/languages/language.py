"""`Language`: all that prompts, the judge and foreign formats need to know of a language. One file here holds one."""

import re
from typing import Literal, NamedTuple


class Example(NamedTuple):
    """A worked example in `prompts/examples`, and the oldest PyTorch that it runs under."""

    name: str
    torch: str


class Package(NamedTuple):
    """The package that a language comes in."""

    distribution: str
    module: str
    """The module that shows whether it is installed. It is not imported: it is large and may need a device."""
    requirement: str
    """The argument of `pip install`."""
    used: re.Pattern[str]
    """A mark of sources whose build depends on the package's version."""
    torch_since: tuple[str, str] | None = None
    """From which of its versions on it needs which torch, where pip does not know."""
    headers: tuple[str, str] | None = None
    """The folder within the module that is to be on the include path, and a header that proves it is there."""


class Language(NamedTuple):
    """A language that candidates are written in. Fields that it does not need keep their defaults."""

    name: str
    words: str
    """Its name in a sentence."""
    device: Literal["cpu", "cuda"]
    """Where its kernels run, and so where inputs and outputs lie."""
    runs_anywhere: bool = False
    """Whether they run wherever torch does, so that a GPU takes them too where there is one."""
    order: int = 70
    """Its place in lists. Of two languages that a source could be in, the earlier one is taken."""

    examples: tuple[Example, ...] = ()
    """Newest first: prompts show the first that their PyTorch can run. Without any, no prompt requests the language."""
    imports: str = "torch"
    """Modules that an answer may import besides the standard library, as words."""
    compiled_by: Literal["load_inline", "asking", "calling"] | None = "load_inline"
    """The compiler of a kernel: torch's loader, the `compile` of the language's module, or the first call."""
    is_cuda: bool = False
    """Whether kernels are written in CUDA C++, so that what prompts say of its instructions holds."""
    shows_snippets: bool = False
    """Whether prompts show snippets of single instructions."""

    module: str = ""
    """The module that a source in it imports, for a language within Python."""
    marks: frozenset[str] = frozenset()
    """Names of that module one of which a source has that makes a kernel."""
    include: re.Pattern[str] | None = None
    """A mark of its sources among those of plain CUDA C++."""
    decorators: tuple[frozenset[str], ...] = ()
    """Words that together in a decorator make a function a kernel of the candidate's own."""
    bodies: frozenset[str] = frozenset()
    """Decorators of the body of a kernel: what the function around it returns becomes one once it is compiled."""
    compiled_loops: frozenset[str] = frozenset()
    """Words in the call that a loop of a kernel goes over where the loop's body is compiled, not run."""

    package: Package | None = None
    needs_nvcc: bool = False
    needs_python_header: bool = False
    """Whether a first call compiles a launcher that includes Python.h."""
    environment: tuple[tuple[str, str], ...] = ()
    """Variables of a process that runs candidates; `{kept}` is where compiled kernels may be kept."""

    kernelbench: str = ""
    """The `backend` under which KernelBench's evaluator takes a candidate; empty where it has none."""
    flashinfer: str = ""
    """Its name in FlashInfer-Trace and SOL-ExecBench; empty where a solution counts as plain Python or PyTorch."""
