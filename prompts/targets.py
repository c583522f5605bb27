"""The languages that a candidate can be asked for, and the worked example that goes with each."""

from pathlib import Path
from typing import Literal, NamedTuple

from kernelwright.prompts.brief import PromptError, Target, TargetVersions

EXAMPLES = Path(__file__).parent / "examples"


class ExampleChoice(NamedTuple):
    """An example folder, and the oldest PyTorch that its answer runs under."""

    folder: str
    torch: str


class TargetLanguage(NamedTuple):
    """What the templates need to know of a target beyond its crib."""

    words: str
    """How the target is named in a sentence."""
    device: Literal["cpu", "cuda"]
    """Where its kernels run, and so where inputs and outputs lie."""
    examples: tuple[ExampleChoice, ...]
    """Newest first: the first that the target versions can run is shown."""
    modules: str = "torch"
    """What an answer may import beside the standard library, as words."""
    is_cuda: bool = False
    """Whether kernels are written in CUDA C++, so that what is said of its instructions holds."""
    compiled_by: Literal["load_inline", "asking", "calling"] = "load_inline"
    """What compiles a kernel: torch's loader, a word of the language's own for it, or the first call."""


# load_inline takes no_implicit_headers, which the raw-pointer examples rest on, from PyTorch 2.8 on.
TARGETS: dict[Target, TargetLanguage] = {
    "cpp": TargetLanguage(
        words="C++ with OpenMP",
        device="cpu",
        examples=(ExampleChoice(folder="cpp", torch="2.8"), ExampleChoice(folder="cpp_classic", torch="1.5")),
    ),
    "cuda": TargetLanguage(
        words="CUDA C++",
        device="cuda",
        examples=(ExampleChoice(folder="cuda", torch="2.8"), ExampleChoice(folder="cuda_classic", torch="1.8")),
        is_cuda=True,
    ),
    "cutlass": TargetLanguage(
        words="CUDA C++ with the headers of CUTLASS and CuTe",
        device="cuda",
        examples=(ExampleChoice(folder="cutlass", torch="2.8"),),
        is_cuda=True,
    ),
    "triton": TargetLanguage(
        words="Triton",
        device="cuda",
        examples=(ExampleChoice(folder="triton", torch="2.0"),),
        modules="torch and triton",
        compiled_by="calling",
    ),
    "tilelang": TargetLanguage(
        words="TileLang",
        device="cuda",
        examples=(ExampleChoice(folder="tilelang", torch="2.4"),),
        modules="torch and tilelang",
        compiled_by="asking",
    ),
    "helion": TargetLanguage(
        words="Helion",
        device="cuda",
        examples=(ExampleChoice(folder="helion", torch="2.9"),),
        modules="torch and helion",
        compiled_by="calling",
    ),
    "cute": TargetLanguage(
        words="CuTe's Python language (CUTLASS 4)",
        device="cuda",
        examples=(ExampleChoice(folder="cute", torch="2.4"),),
        modules="torch, cuda.bindings and cutlass",
        compiled_by="asking",
    ),
}


class Example(NamedTuple):
    """A reference and a full answer to it."""

    reference: str
    answer: str


def example_for(target: Target, versions: TargetVersions) -> Example:
    """The newest example that runs under `versions`; `PromptError` where PyTorch is too old for the target."""
    choices = TARGETS[target].examples
    for choice in choices:
        if versions.torch_at_least(choice.torch):
            folder = EXAMPLES / choice.folder
            return Example(reference=_text(folder / "reference.py"), answer=_text(folder / "answer.py"))
    raise PromptError(
        f"target '{target}' needs PyTorch {choices[-1].torch} or newer and {versions.torch} was asked for; "
        "raise the version or choose another target"
    )


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8")
