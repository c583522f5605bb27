"""What a prompt says of single instructions: parts of the programs in `cribs`, which check themselves on a GPU.

A part is what stands between `// crib: begin NAME` and `// crib: end`, word for word; `data/cribs.toml` says which
problem, device and step are shown it.
"""

import re
import tomllib
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

from pydantic import Field

from kernelwright.problems.languages import TARGETS
from kernelwright.problems.record.base import Record
from kernelwright.problems.record.problem import PrecisionPolicy
from kernelwright.prompts.brief import Brief
from kernelwright.prompts.ideas import When, holds, traits_of
from kernelwright.prompts.prompt import estimated_tokens

CRIBS = Path(__file__).parent / "cribs"
DATA = Path(__file__).parent / "data" / "cribs.toml"
FIRST_CUDA = {"9.0": 12}
"""By compute capability, the first CUDA toolkit that has all of its instructions; none is too old for earlier ones."""


class Crib(Record):
    """One entry of `cribs.toml`."""

    name: str
    mark: str = Field(min_length=1)
    """What a source has that uses the part's instructions."""
    since: str = Field(pattern=r"^\d+\.\d$")
    until: str | None = Field(default=None, pattern=r"^\d+\.\d$")
    precision: PrecisionPolicy | None = None
    when: When = When()

    @property
    def text(self) -> str:
        return crib(self.name)


@cache
def cribs() -> dict[str, str]:
    pattern = re.compile(r"^// crib: begin (\w+)\n(.*?)^// crib: end$", re.MULTILINE | re.DOTALL)
    texts = (path.read_text(encoding="utf-8") for path in sorted(CRIBS.glob("*.cu*")))
    return {name: part.rstrip() for text in texts for name, part in pattern.findall(text)}


def crib(name: str) -> str:
    """One part; where it has no code but only comments, these as one paragraph."""
    lines = cribs()[name].splitlines()
    if all(line.startswith("// ") for line in lines):
        return " ".join(line.removeprefix("// ") for line in lines)
    return cribs()[name]


@cache
def parts() -> tuple[Crib, ...]:
    """All entries, in the order of the data file."""
    return tuple(Crib.model_validate(entry) for entry in tomllib.loads(DATA.read_text(encoding="utf-8"))["part"])


def parts_for(brief: Brief, tokens: int) -> tuple[str, ...]:
    """The texts of those parts that this step has use for, as many from the first on as fit into about `tokens`."""
    capability = next(iter(re.findall(r"compute capability (\d+\.\d)", " ".join(brief.device.facts))), None)
    if not TARGETS[brief.target].shows_snippets or capability is None:
        return ()
    known = (part for part in parts() if _known(part, capability, brief.versions.cuda))
    chosen: list[str] = []
    for part in _asked(known, brief):
        tokens -= estimated_tokens(part.text + "\n\n")
        if tokens < 0:
            break
        chosen.append(part.text)
    return tuple(chosen)


def _known(part: Crib, capability: str, cuda: str | None) -> bool:
    """Whether the device has the instructions, and the compiler."""
    is_old = cuda is not None and int(cuda.split(".")[0]) < FIRST_CUDA.get(part.since, 0)
    return not is_old and _number(part.since) <= _number(capability) <= _number(part.until or capability)


def _asked(known: Iterable[Crib], brief: Brief) -> Iterator[Crib]:
    """Those that problem and step call for: a repair those that its source already uses, whatever the problem."""
    traits, source = traits_of(brief.problem, brief.target), None
    if brief.role == "repair" and brief.parent is not None:
        traits, source = traits._replace(operators=(), bound=None), brief.parent.source
    for part in known:
        is_used = source is None or part.mark in source
        if is_used and part.precision in {None, brief.problem.precision} and holds(part.when, traits):
            yield part


def _number(capability: str) -> tuple[int, ...]:
    return tuple(int(piece) for piece in capability.split("."))
