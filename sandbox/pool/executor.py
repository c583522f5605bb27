"""Executors: the stages of a judging, what they exchange, and the executor of this machine.

An executor runs single stages; the `Dispatcher` decides what runs where. Devices are CUDA devices, or equal parts of a
machine's cores. No process named here runs a candidate: each is a judge, and candidates run in its jailed children.
"""

import asyncio
import hashlib
import json
import os
from collections.abc import Collection, Mapping, Sequence
from functools import cache, cached_property
from importlib.metadata import PackageNotFoundError, version
from itertools import pairwise
from typing import Annotated, Any, Literal, NamedTuple, Protocol

from pydantic import AliasChoices, Field, JsonValue, ValidationError

from kernelwright.problems import Problem
from kernelwright.problems.problem import Record
from kernelwright.sandbox.machine import processor_name
from kernelwright.sandbox.pool.lines import NO_ANSWER, Ended, ProcessOnDemand
from kernelwright.sandbox.verdict.errors import MachineError
from kernelwright.sandbox.verdict.judge_version import JUDGE_FIELD, JUDGE_VERSION
from kernelwright.sandbox.verdict.settings import JudgeSettings, JudgingEffort
from kernelwright.sandbox.verdict.verdicts import Candidate, Verdict
from kernelwright_child import driver

NO_CONDITION = frozenset({"memory_bytes", "device_memory_bytes", "wait_quiet"})
"""Settings that decide whether something can be judged, and never what the verdict is."""
WORKER = "kernelwright.sandbox.pool.worker"
"""The module that a worker process of this machine runs."""
CUDA_VISIBLE = "CUDA_VISIBLE_DEVICES"


@cache
def torch_version() -> str:
    """Return the installed torch, read without importing it, which takes seconds."""
    try:
        return version("torch")
    except PackageNotFoundError:
        return "unknown"


class Conditions(Record):
    """Everything but problem and candidate that a verdict depends on."""

    judge_version: Annotated[str, JUDGE_FIELD]
    device: str
    torch: str
    settings: str
    """The judge's settings as JSON, with sorted keys."""

    @classmethod
    def here(cls, device: str, settings: dict[str, Any]) -> "Conditions":
        """Return those of this process for a device and a dumped `JudgeSettings`."""
        text = json.dumps({key: value for key, value in settings.items() if key not in NO_CONDITION}, sort_keys=True)
        return cls(judge_version=str(JUDGE_VERSION), device=device, torch=torch_version(), settings=text)

    @cached_property
    def alike(self) -> str:
        """A text that is the same for conditions whose verdicts are interchangeable, such as those of other cores."""
        settings = json.loads(self.settings)
        cores = {"cores": len(settings["cores"])} if "cores" in settings else {}
        return json.dumps([self.judge_version, self.device, self.torch, settings | cores], sort_keys=True)

    @cached_property
    def digest(self) -> str:
        """sha256 over the complete record, as 64 hex digits."""
        fields = self.model_dump()
        fields["harness"] = fields.pop("judge_version")  # its first name: digests of stored records stay as they are
        order = ("harness", "device", "torch", "settings")
        text = json.dumps({name: fields[name] for name in order}, separators=(",", ":"), ensure_ascii=False)
        return hashlib.sha256(text.encode()).hexdigest()

    def key(self, problem_digest: str, candidate_digest: str) -> str:
        """Return the key of a verdict: with the same key there is nothing to judge again."""
        return hashlib.sha256(f"{problem_digest}\0{candidate_digest}\0{self.digest}".encode()).hexdigest()


Stage = Literal["build", "check", "time"]
"""`build` scans and compiles, in a build pool. `check` judges at effort `screen`, `time` in full; each has a device to
itself. All timed outputs are checked, so a check before `time` is never required."""


class ExecutorError(Exception):
    """The executor cannot be used; the message is one sentence with the remedy."""


class Lost(Exception):
    """The worker that ran a stage is gone, and with it this stage alone; the message says what is known."""


class ProductGone(Lost):
    """The worker is fine, but its build was lost: it has to be built again."""


class JobError(Record):
    """Why a verdict is not possible: the problem's fault or the machine's, never the candidate's."""

    message: str
    """One sentence."""
    whole_problem: bool = False
    """Whether no candidate of the problem can have one."""
    machine_lacks: bool = False
    """Whether another machine could give one."""
    unsupported: bool = False
    """Whether the problem itself is valid, but cannot be judged here."""


class Unjudged(Exception):
    """No verdict is possible; `error` says why."""

    def __init__(self, error: JobError) -> None:
        super().__init__(error.message)
        self.error = error


class Device(Record):
    """One device: an ordinal on its node, and a kind. Results of different kinds are not compared."""

    kind: str
    """The name of the hardware, such as `NVIDIA H200` or the processor's."""
    ordinal: int
    node: str = "local"
    cores: tuple[int, ...] = ()
    """The cores of the node that belong to it. For a part of a processor, these are the device."""
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
    """Whether its judging needs reference processes of its own, with seeds of their own."""
    effort: JudgingEffort | None = None
    """In place of that of the executor's settings."""
    best_speedup: Annotated[float | None, Field(validation_alias=AliasChoices("best_speedup", "beat"))] = None
    """The best speedup so far: at effort `search` a candidate clearly below it is measured no further."""
    overrides: Annotated[dict[str, JsonValue], Field(validation_alias=AliasChoices("overrides", "asks"))] = Field(
        default={}
    )
    """Settings in place of the worker's, for this work alone."""


class Question(Record):
    """A stage for a worker to run."""

    stage: Stage
    work: Work


class Answer(Record):
    """A worker's answer: exactly one of `verdict`, `product` and `error`."""

    verdict: Verdict | None = None
    """Final; a build gives one only where it failed."""
    product: str | None = None
    """The digest under which a finished build is kept; empty where it cannot be kept."""
    error: JobError | None = None


class Product(NamedTuple):
    digest: str
    place: Any = None
    """The executor's own; None where every worker finds it by its digest."""


class Executor(Protocol):
    """Runs stages. It decides nothing: the `Dispatcher` chooses what runs where, and what is tried again."""

    builders: int
    """Builds that may run at the same time."""
    alternates: bool
    """Whether builds would disturb timing, since both use the same cores: then only one of the two runs."""

    async def open(self) -> tuple[Device, ...]:
        """Return the devices. Raises `ExecutorError`."""
        ...

    async def build(self, work: Work) -> Answer | Product:
        """Return a product, or an answer that ends the judging. Raises `Lost`."""
        ...

    async def run(self, stage: Stage, work: Work, product: Product, device: Device) -> Answer:
        """Check or time on a device that runs nothing else. Raises `Lost`."""
        ...

    async def revive(self, device: Device) -> bool:
        """Replace a worker that was lost, where that is needed; return whether the device can be used again."""
        return True

    def release(self, problem: Problem) -> None:
        """End what workers keep for the problem: nothing more is asked about it for now."""
        return

    async def close(self) -> None:
        return


def choose_kind_name(kinds: Collection[str], wanted: str | None) -> str:
    """Return the kind that has `wanted` in its name; where nothing is wanted, the only one.

    Raises `ExecutorError` where that is ambiguous, for results of different kinds are not compared.
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


def own_cores() -> tuple[int, ...]:
    return tuple(sorted(os.sched_getaffinity(0)))


def settings_on(settings: JudgeSettings, cores: tuple[int, ...]) -> JudgeSettings:
    """Return the chosen settings for a device with these cores, with at most as many threads.

    A worker sees one GPU alone, and so has it as `cuda`.
    """
    chosen = settings.model_dump(mode="json", exclude_unset=True)
    chosen |= {"cores": cores, "threads": min(chosen.get("threads", len(cores)), len(cores))}
    return JudgeSettings.model_validate(chosen | ({"device": "cuda"} if settings.gpu else {}))


def split(cores: tuple[int, ...], parts: int) -> list[tuple[int, ...]]:
    """Return equal parts, the first ones taking the remainder. Raises `ExecutorError` for more parts than cores."""
    if not 1 <= parts <= len(cores):
        raise ExecutorError(f"{parts} devices were asked for and this machine has {len(cores)} cores; ask for fewer")
    size, left = divmod(len(cores), parts)
    ends = [number * size + min(number, left) for number in range(parts + 1)]
    return [cores[start:end] for start, end in pairwise(ends)]


def shared_cores(cores: tuple[int, ...], gpus: int) -> list[tuple[int, ...]]:
    """Return the cores of each GPU's judge, however many GPUs are used: a part of its own where there are enough."""
    return split(cores, gpus) if gpus <= len(cores) else [cores] * gpus


def local_devices(settings: JudgeSettings, count: int | None) -> tuple[Device, ...]:
    """Return the first `count` CUDA devices, or as many parts of the cores; for None all CUDA devices, or one part.

    Settings that name one of several (`cuda:1`) give that one. Raises `ExecutorError` for more than there are,
    `MachineError` where there are no CUDA devices at all.
    """
    if not settings.gpu:
        parts = split(settings.cores, count or 1)
        return tuple(device_at(ordinal, processor_name(), settings, part) for ordinal, part in enumerate(parts))
    names = [driver.device_name(ordinal) for ordinal in range(driver.device_count())]
    if not names:
        raise MachineError("there is no CUDA device; use a machine with a GPU, or candidates in cpp")
    if count is not None and count > len(names):
        raise ExecutorError(f"{count} devices were asked for and there are {len(names)}; ask for fewer")
    shares = shared_cores(settings.cores, len(names))
    chosen = ordinals(settings, count, len(names))
    return tuple(device_at(ordinal, names[ordinal], settings, shares[ordinal]) for ordinal in chosen)


def ordinals(settings: JudgeSettings, count: int | None, there: int) -> range:
    if ":" not in settings.device:
        return range(there if count is None else count)
    if count is not None:
        raise ExecutorError(f"{settings.device} is one device and {count} were asked for; leave out one of the two")
    if settings.ordinal >= there:
        raise MachineError(f"there is no {settings.device}: there are {there} CUDA devices; name one of those")
    return range(settings.ordinal, settings.ordinal + 1)


def device_at(ordinal: int, kind: str, settings: JudgeSettings, cores: tuple[int, ...], node: str = "local") -> Device:
    """Return a device with the conditions of its verdicts; call it on its node."""
    conditions = Conditions.here(kind, settings_on(settings, cores).model_dump(mode="json"))
    return Device(kind=kind, ordinal=ordinal, node=node, cores=cores, conditions=conditions)


class WorkerProcess(ProcessOnDemand):
    """A worker of this machine. It answers as many questions at the same time as it has threads."""

    def __init__(
        self,
        settings: JudgeSettings,
        threads: int,
        *,
        stays: bool = False,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """`stays`: whether it keeps to the cores of its settings, with everything that it starts."""
        chosen = settings.model_dump_json(exclude_unset=True)
        super().__init__(WORKER, str(threads), chosen, *(["stays"] if stays else []), environment=environment)

    async def ask(self, question: Question) -> Answer:
        """Return the worker's answer. Raises `Lost` where its process ends before that, or writes something else."""
        process = await self.started()
        try:
            found = await process.ask({"question": question.model_dump(mode="json")})
            return Answer.model_validate(found.get("answer"))
        except Ended as error:
            raise Lost(f"its worker was lost: {error}") from None
        except ValidationError:
            process.lose(NO_ANSWER)
            raise Lost(f"its worker was lost: {NO_ANSWER}") from None

    def release(self, problem: Problem) -> None:
        self.send({"release": problem.digest})


class LocalExecutor(Executor):
    """See `Executor`. Processes start when first needed, so that a batch without new work starts none."""

    def __init__(
        self,
        settings: JudgeSettings,
        builders: int,
        devices: int | Sequence[Device] | None = None,
        at_once: bool = False,
        one_process: bool = False,
    ) -> None:
        """`devices`: how many (None: every CUDA device, or the complete processor), or devices that are declared.

        `at_once`: processes start when it is opened, to be ready for the first candidate.
        `one_process`: the process of an only device builds too, which saves the memory of another one.
        """
        self.builders = builders
        self.alternates = not settings.gpu
        self._settings, self._wanted, self._at_once, self._one_process = settings, devices, at_once, one_process
        self._pool = [] if settings.gpu else [WorkerProcess(settings_on(settings, own_cores()), builders)]
        self._supervisors: dict[str, WorkerProcess] = {}

    async def open(self) -> tuple[Device, ...]:
        """Return the devices; start nothing unless that was asked for."""
        wanted = self._wanted
        devices = local_devices(self._settings, wanted) if wanted is None or isinstance(wanted, int) else tuple(wanted)
        timed = sum(settings_on(self._settings, device.cores).threads for device in devices)
        self.alternates = not self._settings.gpu and timed >= len(own_cores())
        if len(devices) == 1 and (self.alternates or self._one_process):
            self._pool = []
        self._supervisors = {device.name: self._supervisor(device, len(devices)) for device in devices}
        if self._at_once:
            await asyncio.gather(*(process.started() for process in self._processes))
        return devices

    @property
    def _processes(self) -> list[WorkerProcess]:
        return [*self._supervisors.values(), *self._pool]

    def _supervisor(self, device: Device, count: int) -> WorkerProcess:
        settings = settings_on(self._settings, device.cores)
        if not settings.gpu:
            threads = 1 if self._pool else self.builders + (not self.alternates)
            return WorkerProcess(settings, threads, stays=count > 1)
        shown = [name for name in os.environ.get(CUDA_VISIBLE, "").split(",") if name]
        alone = {CUDA_VISIBLE: shown[device.ordinal] if shown else str(device.ordinal)}
        threads = 1 + -(-self.builders // count)
        return WorkerProcess(settings, threads, stays=bool(device.cores), environment=alone)

    @property
    def pids(self) -> dict[str, int | None]:
        """The processes by the names of their devices, and those of build pools under `builds/N`."""
        named = {name: process.pid for name, process in self._supervisors.items()}
        return named | {f"builds/{number}": process.pid for number, process in enumerate(self._pool)}

    async def build(self, work: Work) -> Answer | Product:
        pool = min(self._pool or self._supervisors.values(), key=lambda process: process.asked)
        answer = await pool.ask(Question(stage="build", work=work))
        return answer if answer.product is None else Product(answer.product)

    async def run(self, stage: Stage, work: Work, product: Product, device: Device) -> Answer:
        return await self._supervisors[device.name].ask(Question(stage=stage, work=work))

    def release(self, problem: Problem) -> None:
        for process in self._processes:
            process.release(problem)

    async def close(self) -> None:
        await asyncio.gather(*(process.close() for process in self._processes))
