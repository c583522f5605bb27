"""The parts that a program can be cut into: each a problem of its own, with all that putting a kernel back needs."""

from typing import Literal

from pydantic import Field

from kernelwright.problems.record.base import Record
from kernelwright.problems.record.problem import Direction, PrecisionPolicy
from kernelwright.programs.record.seen import TensorSeen
from kernelwright.sandbox.verdict.roofline import NecessaryWork


class CallSite(Record):
    """One place in the program where a part occurs, at one size."""

    root: str
    """Which of the program's outermost modules, as `ModuleSeen.root`."""
    module: str
    """The qualified name within the root of the module that is the part, or whose `forward` holds the run."""
    calls: int = Field(ge=1)
    ms: float = Field(ge=0)
    """Of all calls that were seen, forward and backward."""


class PartInput(Record):
    """One argument of the problem's `Model.forward`."""

    name: str
    """The parameter's name in the problem."""
    leaf: int | None = None
    """Of a whole module: which leaf of `tree_flatten((args, kwargs))` of its call. None for a run."""
    node: str | None = None
    """Of a run: the node of the exported graph whose value it is."""
    tensor: TensorSeen


class Run(Record):
    """Operators one after another inside one `forward`, of the graph that `programs.capture.graphs.export_call` gives.

    Between the first and the last node nothing else stands, so a call of the kernel can take the place of the last.
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
    """What `Model.forward` returns: one tensor, or a tuple of them."""
    call: str = ""
    """How a whole module is called, for its guard: `pytree.treespec_dumps` of (args, kwargs). Empty for a run."""
    other_leaves: dict[int, str] = Field(default_factory=dict)
    """The leaves of the call that are no tensors, by place, as `repr` writes them: built into the problem."""
    result: str = ""
    """How the problem's outputs are put together: `treespec_dumps`; its leaves are the outputs, then what is None."""
    result_leaves: tuple[int | None, ...] = ()
    """For each leaf of the result: which output of the problem it is, None where it is None."""
    sites: tuple[CallSite, ...]
    work: NecessaryWork | None = None
    """Of one call; None where it could not be told."""
    eager_ms: float | None = None
    """Of one call by itself, on inputs drawn like those seen, forward and backward."""

    @property
    def calls(self) -> int:
        return sum(site.calls for site in self.sites)

    @property
    def ms(self) -> float:
        return sum(site.ms for site in self.sites)


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
    """That compute something; views are not counted."""
    sizes: tuple[PartSize, ...] = Field(min_length=1)
    """The one where most time goes first."""

    @property
    def problem(self) -> str:
        """The folder of its problem, within the capture's."""
        return f"problems/{self.id}"

    @property
    def ms(self) -> float:
        """Of all calls at all sites and sizes."""
        return sum(size.ms for size in self.sizes)

    @property
    def calls(self) -> int:
        """At all sites and sizes."""
        return sum(size.calls for size in self.sizes)


class Uncut(Record):
    """A module, or a run in one, that could not be cut out, with the reason as a clause for the user."""

    root: str
    module: str
    class_name: str
    run: str = ""
    """The operators where it is a run inside its `forward`; empty for the whole."""
    ms: float
    why: str
