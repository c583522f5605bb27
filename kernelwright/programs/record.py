"""Records of a capture: tensors as they were seen, parts with all that putting back needs, its folder and pictures."""

import os
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import Field, ValidationError

from kernelwright.problems.problem import Direction, PrecisionPolicy, ProblemError, Record, first_fault
from kernelwright.sandbox.storage import write_atomically
from kernelwright.sandbox.verdict.roofline import NecessaryWork

CAPTURE, SPLIT, PROBLEMS = "capture.json", "split.json", "problems"
VERSION = 1
Drawing = Literal["normal", "uniform", "rectified", "constant", "integers", "counting", "causal", "share"]
"""Distributions of drawn values, by the values that were seen.

`rectified`: none below zero, and many zeros. `counting`: 0, 1, 2, ... along the last axis. `causal`: `low` above the
diagonal of the last two axes and `high` elsewhere. `share`: `high` with the probability `share`, else `low`.
"""


class ValuesSeen(Record):
    """Statistics of the finite values of a tensor; a draw resembles them, and no value itself is kept."""

    drawing: Drawing
    low: float = 0.0
    """The least; for a mask, the value of "not this one" (as large as it is finite where that is minus infinity)."""
    high: float = 0.0
    mean: float = 0.0
    deviation: float = 0.0
    zeros: float = 0.0
    share: float = 0.0
    """Of `share`: the share of `high`."""
    infinite: bool = False
    """Of masks: `low` means minus infinity."""


class TensorSeen(Record):
    shape: tuple[int, ...]
    dtype: str
    """Without `torch.`, such as `float32`."""
    stride: tuple[int, ...]
    """In elements."""
    device: str = "cpu"
    requires_grad: bool = False
    values: ValuesSeen | None = None
    """None where nobody looked: at outputs, and at tensors without elements."""

    @property
    def words(self) -> str:
        return f"{'x'.join(map(str, self.shape)) or 'scalar'} {self.dtype}"


class ModuleSeen(Record):
    """One module of a program at one kind of inputs, and the time that went there."""

    name: str
    """Its qualified name within its root; empty for the root itself."""
    root: str
    """One of the program's outermost modules: its class's name, followed by a number from the second one on."""
    class_name: str
    """As `torchvision.models.resnet.BasicBlock`."""
    inputs: tuple[TensorSeen, ...] = ()
    training: bool = False
    calls: int = Field(ge=1)
    forward_ms: float = Field(ge=0)
    """Of all calls that were seen, with everything that is called from there."""
    backward_ms: float = Field(default=0.0, ge=0)
    operators: int = Field(default=0, ge=0)
    """Calls of torch's operators from Python in one call, its submodules' among them."""


class CallSite(Record):
    """One place in the program where a part occurs, at one size."""

    root: str
    """One of the program's outermost modules, as `ModuleSeen.root`."""
    module: str
    """The qualified name within the root of the module that is the part, or whose `forward` holds the run."""
    calls: int = Field(ge=1)
    ms: float = Field(ge=0)
    """Of all calls that were seen, forward and backward."""


class PartInput(Record):
    name: str
    leaf: int | None = None
    """Of a whole module: which leaf of `tree_flatten((args, kwargs))` of its call. None for a run."""
    node: str | None = None
    """Of a run: the node of the exported graph whose value it is."""
    tensor: TensorSeen


class Run(Record):
    """Operators one after another inside one `forward`, of the graph that `programs.graphs.export_call` gives.

    Nothing else lies between the first and the last node, so a call of the kernel can take the place of the last.
    """

    nodes: tuple[str, ...]
    """Names of the graph's nodes in its order."""
    outputs: tuple[str, ...]
    """Those whose values are used elsewhere, in the order in which the problem's `Model` returns them."""
    graph: str
    """The digest of the whole graph, to see that it is the same."""
    owners: tuple[str, ...]
    """The modules whose own operators these are: qualified names within the exported module, empty for itself."""


class PartSize(Record):
    """A part at one kind of inputs: a size of its problem."""

    name: str
    """Of the size in `problem.toml`; `cpu` for the one where most time goes, which is loaded by default."""
    constants: dict[str, int] = Field(default_factory=dict)
    """The values of the problem's constants at this size."""
    inputs: tuple[PartInput, ...]
    outputs: tuple[TensorSeen, ...]
    """One tensor that `Model.forward` returns, or a tuple of them."""
    call: str = ""
    """Structure of a module's call, for its guard: `pytree.treespec_dumps` of (args, kwargs). Empty for a run."""
    other_leaves: dict[int, str] = Field(default_factory=dict)
    """The leaves of the call that are no tensors, by place, as `repr` writes them: built into the problem."""
    result: str = ""
    """Structure of the problem's outputs: `treespec_dumps`; its leaves are the outputs, then those of None."""
    result_leaves: tuple[int | None, ...] = ()
    """For each leaf of the result: which output of the problem it is, None where it is None."""
    sites: tuple[CallSite, ...]
    work: NecessaryWork | None = None
    """Of one call; None where it is not known."""
    eager_ms: float | None = None
    """Of one call by itself, on inputs drawn like those seen, forward and backward."""


class Part(Record):
    """A whole submodule, or a run of operators inside one `forward`, wherever the program has the same."""

    id: str
    """Also the name of its problem, `problems/ID` in the capture's folder."""
    title: str
    kind: Literal["module", "run"]
    class_name: str
    """Of the module that it is, or whose `forward` holds the run."""
    run: Run | None = None
    """None for a whole module."""
    state: dict[str, str]
    """By name in the problem's state dict, the qualified name within the module at each site."""
    written: tuple[str, ...] = ()
    """Names in the problem of buffers that a call changes, such as running statistics."""
    training: bool
    direction: Direction
    precision: PrecisionPolicy = "strict"
    operators: int = Field(ge=1)
    """Operators that compute something; views are not counted."""
    sizes: tuple[PartSize, ...] = Field(min_length=1)
    """The one where most time goes first."""

    @property
    def problem(self) -> str:
        return f"problems/{self.id}"


class Uncut(Record):
    """A module, or a run in one, that could not be cut out, with the reason as a clause for the user."""

    root: str
    module: str
    class_name: str
    run: str = ""
    """The operators where it is a run inside its `forward`; empty for the whole."""
    ms: float
    why: str


class OperatorSeen(Record):
    name: str
    calls: int
    ms: float
    """Its own: without the operators that it calls."""


class CapturedProgram(Record):
    """The record of a program while it was watched. Times are of this device, under the profiler."""

    version: int = VERSION
    program: str
    """The words that started it, or the class of the model."""
    device: str
    is_gpu: bool = False
    threads: int
    versions: dict[str, str] = Field(default_factory=dict)
    steps: int = Field(ge=1)
    """Calls of outermost modules that were watched; all that follows each, such as a backward pass, belongs to it."""
    steps_seen: int = Field(ge=1)
    program_ms: float = Field(ge=0)
    """Of the watched steps."""
    modules: tuple[ModuleSeen, ...]
    operators: tuple[OperatorSeen, ...] = ()
    """The slowest first."""
    parts: tuple[Part, ...]
    """All that were cut out, overlapping ones too."""
    uncut: tuple[Uncut, ...] = ()
    notes: tuple[str, ...] = ()
    values: str | None = None
    """The file of weights and inputs where they were asked for."""

    def part(self, name: str) -> Part:
        """Find a part by its id; `ProblemError` where there is none."""
        found = next((part for part in self.parts if part.id == name), None)
        if found is None:
            raise ProblemError(f"the capture has no part {name!r}; there are: {', '.join(p.id for p in self.parts)}")
        return found


class Chosen(Record):
    """A part that is worth a kernel, at the sites that no part before it has taken."""

    part: str
    ms: float
    share: float
    """Of the program's time."""
    floor_ms: float
    """The least time for the same calls on this device; 0 where it is not known."""
    compiled_ms: float | None = None
    """For the same calls as torch.compile makes them; None where it was not measured."""
    gain_ms: float
    """The most that could be gained: from the better of eager and torch.compile down to the roofline."""
    sites: tuple[tuple[str, str], ...]
    """Root and module of those where a kernel would be put."""


class Split(Record):
    """The choice among a capture's parts, best first, none of them overlapping another."""

    version: int = VERSION
    program_ms: float
    chosen: tuple[Chosen, ...]
    compiled: bool = False

    def weights(self, top: int | None = None) -> dict[str, float]:
        """Return by part its share of the possible gain of all: where a budget is best spent."""
        parts = self.chosen[:top]
        total = sum(part.gain_ms for part in parts)
        return {part.part: part.gain_ms / total if total else 1 / len(parts) for part in parts}


R = TypeVar("R", bound=Record)


def is_capture(path: Path | str) -> bool:
    return os.path.isfile(Path(path) / CAPTURE)  # noqa: PTH113 - False for a path that is too long


def read_capture(folder: Path) -> CapturedProgram:
    """Read the capture in a folder; `ProblemError` where there is none, or one of another version."""
    return _read(folder / CAPTURE, CapturedProgram)


def read_split(folder: Path) -> Split:
    """Read the choice of a capture; `ProblemError` where none was made."""
    return _read(folder / SPLIT, Split)


def write_record(folder: Path, record: CapturedProgram | Split) -> None:
    name = CAPTURE if isinstance(record, CapturedProgram) else SPLIT
    write_atomically(folder / name, record.model_dump_json(indent=1) + "\n")


def _read(path: Path, kind: type[R]) -> R:
    try:
        return kind.model_validate_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ProblemError(f"{path.parent} holds no {path.name}; make one with kernelwright capture") from None
    except ValidationError as error:
        raise ProblemError(f"{path} is of another version of kernelwright ({first_fault(error).key})") from None


def svg(template: str, **values: Any) -> str:
    """Render a picture of `templates`. Names come from outside, and XML has no place for control characters."""
    from jinja2 import Environment, FileSystemLoader

    def plain(value: Any) -> Any:
        return "".join(one if one.isprintable() else "?" for one in value) if isinstance(value, str) else value

    loader = FileSystemLoader(Path(__file__).parent / "templates")
    environment = Environment(loader=loader, autoescape=True, finalize=plain, trim_blocks=True, lstrip_blocks=True)
    return environment.get_template(template).render(values)
