"""What an executor is: three stages, what each needs, and what comes back, under which conditions."""

import hashlib
import json
from collections.abc import Collection, Mapping
from functools import cache, cached_property
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated, Any, Literal, NamedTuple, Protocol

from pydantic import Field, JsonValue

from kernelwright.problems import Problem
from kernelwright.problems.problem import Record
from kernelwright.sandbox.verdict.judge_version import JUDGE_FIELD, JUDGE_VERSION
from kernelwright.sandbox.verdict.settings import JudgingEffort
from kernelwright.sandbox.verdict.verdicts import Candidate, Verdict

NO_CONDITION = frozenset({"memory_bytes", "device_memory_bytes", "wait_quiet"})
"""Settings that decide whether something can be judged, and never what the verdict is."""


@cache
def torch_version() -> str:
    """The installed torch, read without importing it, which takes seconds."""
    try:
        return version("torch")
    except PackageNotFoundError:
        return "unknown"


class Conditions(Record):
    """All beside problem and candidate that a verdict depends on."""

    judge_version: Annotated[str, JUDGE_FIELD]
    device: str
    torch: str
    settings: str
    """The judge's settings as JSON, with sorted keys."""

    @classmethod
    def here(cls, device: str, settings: dict[str, Any]) -> "Conditions":
        """Those of this process for a device and a dumped `Settings`."""
        text = json.dumps({key: value for key, value in settings.items() if key not in NO_CONDITION}, sort_keys=True)
        return cls(judge_version=str(JUDGE_VERSION), device=device, torch=torch_version(), settings=text)

    @cached_property
    def alike(self) -> str:
        """The same for conditions whose verdicts may stand for one another: which cores were used tells nothing."""
        settings = json.loads(self.settings)
        cores = {"cores": len(settings["cores"])} if "cores" in settings else {}
        return json.dumps([self.judge_version, self.device, self.torch, settings | cores], sort_keys=True)

    @cached_property
    def digest(self) -> str:
        """sha256 over the whole record, as 64 hex digits."""
        fields = self.model_dump()
        fields["harness"] = fields.pop("judge_version")  # its first name: digests of stored records stay as they are
        order = ("harness", "device", "torch", "settings")
        text = json.dumps({name: fields[name] for name in order}, separators=(",", ":"), ensure_ascii=False)
        return hashlib.sha256(text.encode()).hexdigest()

    def key(self, problem_digest: str, candidate_digest: str) -> str:
        """What identifies a verdict: the same key means that there is nothing to judge again."""
        return hashlib.sha256(f"{problem_digest}\0{candidate_digest}\0{self.digest}".encode()).hexdigest()


Stage = Literal["build", "check", "time"]
"""`build` scans and compiles; it needs no device. `check` judges at effort `screen`: is it right, and about how
fast? `time` is the whole judging: every timed output is checked, so a check before it is never required."""


class StageResources(Record):
    """The resources that one stage holds while it runs."""

    build: float = 0
    """Places in a build pool; each is meant to be a core."""
    device: float = 0
    """Devices, held alone: nothing else is checked, timed or built on them meanwhile."""


NEEDS: Mapping[Stage, StageResources] = {
    "build": StageResources(build=1),
    "check": StageResources(device=1),
    "time": StageResources(device=1),
}


class ExecutorError(Exception):
    """The executor cannot be used; the message is one sentence with the remedy."""


class Lost(Exception):
    """The worker that ran a stage is gone, and with it this stage alone; the message says what is known."""


class ProductGone(Lost):
    """The worker is in order, but what was built for it is nowhere to be had: it has to be built again."""


class Unjudged(Exception):
    """There is no verdict: the problem or the machine can not be used. Not the candidate's fault; one sentence."""

    def __init__(
        self, message: str, whole_problem: bool = False, machine_lacks: bool = False, unsupported: bool = False
    ) -> None:
        super().__init__(message)
        self.whole_problem = whole_problem
        """Whether no candidate of the problem can have one."""
        self.machine_lacks = machine_lacks
        """Whether another machine could give one."""
        self.unsupported = unsupported
        """Whether the problem is sound for itself."""


class Device(Record):
    """One device: an ordinal on its node, and a kind. Results of different kinds are not compared."""

    kind: str
    """The name of the hardware, such as `NVIDIA H200` or the processor's."""
    ordinal: int
    node: str = "local"
    cores: tuple[int, ...] = ()
    """The cores of the node that belong to it; for a device that is a part of a processor, these are the device."""
    conditions: Conditions
    """Those of every verdict that is reached on it."""

    @property
    def name(self) -> str:
        return f"{self.node}/{self.ordinal}"


class Work(Record):
    """One candidate for one problem, to be judged."""

    problem: Problem
    candidate: Candidate
    fresh: bool = False
    """Whether its judging has to have reference processes of its own, with seeds of their own."""
    effort: JudgingEffort | None = None
    """Other than that of the executor's settings."""
    beat: float | None = None
    """The speedup of the best so far: at effort `search` what is clearly below it is measured no further."""
    asks: dict[str, JsonValue] = Field(default={})
    """Settings of the judge that this work wants to be other than the worker's."""


class Question(Record):
    """What a worker is asked."""

    stage: Stage
    work: Work


class Answer(Record):
    """What a worker says. Exactly one of `verdict`, `product` and `trouble` is there."""

    verdict: Verdict | None = None
    """Final; a build gives one only where it failed."""
    product: str | None = None
    """The digest under which a finished build is kept; empty where it can not be kept."""
    trouble: str | None = None
    """Why there is no verdict, in one sentence."""
    broken_problem: bool = False
    """Whether the trouble is the problem's own."""
    unsupported: bool = False
    """Whether the problem is sound for itself, and asks for more than can be judged here."""
    machine_lacks: bool = False
    """Whether the trouble is that the worker's machine lacks something."""


class Product(NamedTuple):
    digest: str
    place: Any = None
    """The executor's own; None where every worker finds it by its digest."""


class Executor(Protocol):
    """Runs stages. It decides nothing: what runs where, and what is tried again, is the `Dispatcher`'s."""

    builders: int
    """Builds that may run at once."""
    takes_turns: bool
    """Whether builds would disturb timing, since both use the same cores: then they run one or the other."""

    async def open(self) -> tuple[Device, ...]:
        """The devices. Raises `ExecutorError`."""
        ...

    async def build(self, work: Work) -> Answer | Product:
        """A product, or an answer that ends the judging. Raises `Lost`."""
        ...

    async def run(self, stage: Stage, work: Work, product: Product, device: Device) -> Answer:
        """Check or time on a device that runs nothing else. Raises `Lost`."""
        ...

    async def revive(self, device: Device) -> bool:
        """Put a new worker in the place of one that was lost; whether the device can be used again."""
        ...

    def release(self, problem: Problem) -> None:
        """Nothing more is asked about the problem for now: what workers keep for it may end."""
        ...

    async def close(self) -> None: ...


def choose_kind_name(kinds: Collection[str], wanted: str | None) -> str:
    """The kind that has `wanted` in its name; where nothing is wanted, the only one.

    Raises `ExecutorError` where that leaves a doubt, for results of different kinds are not compared.
    """
    word = (wanted or "").casefold()
    fitting = sorted(kind for kind in kinds if word in kind.casefold())
    fitting = [kind for kind in fitting if kind.casefold() == word] or fitting
    if not fitting:
        raise ExecutorError(f"no device of kind {wanted!r}; there are: {', '.join(sorted(kinds)) or 'none'}")
    if len(fitting) > 1:
        raise ExecutorError(
            f"there are devices of {len(fitting)} kinds, whose results are not compared ({', '.join(fitting)}); "
            "choose one with --kind"
        )
    return fitting[0]


def choose_kind(devices: tuple[Device, ...], wanted: str | None) -> tuple[Device, ...]:
    kind = choose_kind_name({device.kind for device in devices}, wanted)
    return tuple(device for device in devices if device.kind == kind)
