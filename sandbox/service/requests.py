"""Requests: their fields, and the process that reads them: `python -m kernelwright.sandbox.service.requests`.

Parsing a client's source can take all memory, minutes, or the parser's life. Then it is this process that ends, and the
request is refused; the next one is read by a new process.
"""

import asyncio
import resource
from collections.abc import Collection
from typing import Annotated, Any

from pydantic import Field, JsonValue, StringConstraints, ValidationError, model_validator

from kernelwright.problems import Problem, ProblemError, catalog_names, load_problem, problem_of_text
from kernelwright.problems.languages import ON_DEVICE
from kernelwright.problems.loading import check_name
from kernelwright.problems.problem import Record, first_fault
from kernelwright.problems.source import check_reference
from kernelwright.sandbox.authenticity.scan import candidate_of
from kernelwright.sandbox.pool.client import JobSettings
from kernelwright.sandbox.pool.executor import Stage, Work
from kernelwright.sandbox.pool.lines import Ended, LineServer, ProcessOnDemand, answers_only
from kernelwright.sandbox.service.store import DeviceKind, NewJob
from kernelwright.sandbox.verdict.settings import JudgeSettings, JudgingEffort

LONGEST_TEXT = 2**18
"""Characters of a source or of a problem's text."""
Text = Annotated[str, StringConstraints(max_length=LONGEST_TEXT)]
Short = Annotated[str, StringConstraints(min_length=1, max_length=200)]


class JobRequest(Record):
    """A candidate to be judged. The problem is given in one of three ways: `problem`, `text` or `record`."""

    problem: Short | None = Field(default=None, description="Name of a problem of the catalog.")
    text: Text | None = Field(default=None, description="Text of a problem file in the KernelBench convention.")
    record: dict[str, JsonValue] | None = Field(
        default=None, description="A problem as GET /v1/problems/NAME gives it."
    )
    name: Short = Field(default="problem", description="What a problem that is given as `text` is to be called.")
    size: Short | None = Field(default=None, description="Of a catalog problem; default: what fits the candidate.")
    dtype: Short | None = Field(default=None, description="Cast weights and floating inputs; default: as they are.")
    backward: bool = Field(default=False, description="Judge and time the gradients too.")
    source: Text = Field(description="The candidate: Python that defines ModelNew.")
    device: DeviceKind | None = Field(default=None, description="Default: that of the source's language.")
    effort: JudgingEffort | None = Field(default=None, description="How sure the verdict has to be; default: rank.")
    beat: float | None = Field(
        default=None, gt=0, allow_inf_nan=False, description="At effort `search`: the speedup of the best so far."
    )
    settings: JobSettings = JobSettings()
    stage: Stage = Field(default="time", description="`check` is effort `screen`.")
    fresh: bool = Field(default=False, description="By reference processes of its own, with seeds of their own.")
    priority: int = Field(default=0, ge=-10, le=10, description="Each is worth a minute of waiting.")
    key: Short | None = Field(default=None, description="The same key again gives the same job: for trying again.")

    @model_validator(mode="after")
    def _one_problem(self) -> "JobRequest":
        if sum(one is not None for one in (self.problem, self.text, self.record)) != 1:
            raise ValueError("give the problem as one of `problem`, `text` and `record`")
        if self.stage == "build":
            raise ValueError("stage is `check` or `time`")
        return self


class RequestError(Exception):
    """The request cannot be fulfilled as it is; one sentence with the remedy."""


def read_request(text: str, kinds: Collection[DeviceKind]) -> NewJob:
    """Return the job of a request's body. Raises `RequestError`."""
    try:
        asked = JobRequest.model_validate_json(text)
    except ValidationError as error:
        fault = first_fault(error)
        raise RequestError(f"the request is not valid: {fault.key}: {fault.said}; see /docs") from None
    candidate = candidate_of(asked.source)
    try:
        kind, size = _wanted(asked, candidate.language, kinds)
        problem = _problem(asked, size)
    except ProblemError as error:
        raise RequestError(str(error)) from None
    work = Work(
        problem=problem, candidate=candidate, fresh=asked.fresh, best_speedup=asked.beat, overrides=_overrides(asked)
    )
    kept = work.model_dump_json()
    if Work.model_validate_json(kept) != work:  # JSON has no infinity, which a record's details may hold
        raise RequestError("the request holds a number that cannot be kept, such as Infinity; leave it out")
    return NewJob(
        work=kept, stage=asked.stage, device=kind, problem=problem.name, priority=asked.priority, key=asked.key
    )


def _wanted(asked: JobRequest, language: str, kinds: Collection[DeviceKind]) -> tuple[DeviceKind, str | None]:
    """Return where to judge, and at which size of a catalog problem."""
    on_device = language in ON_DEVICE
    size = asked.size or ("cpu" if asked.problem else (asked.record or {}).get("size"))
    fits_device = on_device or (language == "python" and size != "cpu" and "cuda" in kinds)
    kind = asked.device or ("cuda" if fits_device or "cpu" not in kinds else "cpu")
    if kind == "cpu" and on_device:
        raise RequestError(
            f"what is written in {language} runs on a CUDA device alone; leave `device` out, or give cuda"
        )
    if kind not in kinds:
        raise RequestError(f"this service judges on {' and '.join(kinds)} alone; ask one that has {kind}")
    return kind, asked.size or ("gpu" if kind == "cuda" and asked.problem else None)


def _problem(asked: JobRequest, size: str | None) -> Problem:
    """Return the problem, from the catalog or the client's text: no client names a file of this machine."""
    if asked.problem is not None:
        if asked.problem not in catalog_names():
            raise RequestError(
                f"no problem {asked.problem!r} in the catalog; there are: {', '.join(catalog_names())}; "
                "send any other as `text`"
            )
        problem = load_problem(asked.problem, size, asked.dtype)
    elif asked.text is not None:
        problem = problem_of_text(asked.text, asked.name, asked.dtype)
    else:
        problem = _of_record(asked.record or {})
    return problem.model_copy(update={"direction": "both"}) if asked.backward else problem


def _of_record(record: dict[str, JsonValue]) -> Problem:
    try:
        problem = Problem.model_validate(record)
    except ValidationError as error:
        fault = first_fault(error)
        raise RequestError(f"`record` is not a problem: {fault.key}: {fault.said}") from None
    if len(problem.source) > LONGEST_TEXT:
        raise RequestError(f"`record` has a source of more than {LONGEST_TEXT} characters; send a shorter one")
    check_name(problem.name)
    check_reference(problem.source, problem.name)
    return problem


def _overrides(asked: JobRequest) -> dict[str, JsonValue]:
    """Return the settings of the job that differ from the worker's."""
    overrides = asked.settings.model_dump(mode="json", exclude_none=True)
    overrides |= {} if asked.effort is None else {"effort": asked.effort}
    try:
        JudgeSettings.model_validate(overrides)
    except ValidationError as error:
        fault = first_fault(error)
        raise RequestError(f"`settings`: {fault.key}: {fault.said}") from None
    return overrides


MODULE = "kernelwright.sandbox.service.requests"
MEMORY_BYTES = 2 * 2**30
ANSWER_S = 5.0
"""Limit on the reading of one request; the judge parses its texts several times, with others waiting for it."""
START_S = 120.0
SMALL_LETTERS = 2**16
"""Requests up to this length are read in processes of their own: no larger one delays them."""
SMALL_READERS, LARGE_READERS = 2, 2


class TextReaders:
    """Processes that read one request at a time, some of them small ones alone. Close it."""

    def __init__(self) -> None:
        self._processes = [ProcessOnDemand(MODULE) for _ in range(SMALL_READERS + LARGE_READERS)]
        # The one that was used last is taken first: fewer are started.
        self.small: asyncio.LifoQueue[ProcessOnDemand] = asyncio.LifoQueue()
        self.large: asyncio.LifoQueue[ProcessOnDemand] = asyncio.LifoQueue()
        for number, process in enumerate(self._processes):
            (self.small if number < SMALL_READERS else self.large).put_nowait(process)

    async def read(self, text: str, kinds: Collection[DeviceKind]) -> NewJob:
        """Return the job of a request. Its time begins when a process is free. Raises `RequestError`."""
        free = self.small if len(text) <= SMALL_LETTERS else self.large
        reader = await free.get()
        try:
            is_new = reader.pid is None
            process = await reader.started()
            if is_new:
                await asyncio.wait_for(process.ask({}), START_S)
            try:
                found = await asyncio.wait_for(process.ask({"read": text, "kinds": sorted(kinds)}), ANSWER_S)
            except (TimeoutError, asyncio.CancelledError):
                process.lose("nobody waits for its answer")
                raise
        except (Ended, TimeoutError):
            raise RequestError("the texts of this request cannot be parsed in the time and memory there is") from None
        finally:
            free.put_nowait(reader)
        if "refused" in found:
            raise RequestError(found["refused"])
        return NewJob.model_validate(found["job"])

    async def close(self) -> None:
        await asyncio.gather(*(process.close() for process in self._processes))


def answer(question: dict[str, Any]) -> dict[str, Any]:
    if "read" not in question:  # only whether the process is ready
        return {}
    try:
        return {"job": read_request(question["read"], question["kinds"]).model_dump(mode="json")}
    except RequestError as error:
        return {"refused": str(error)}


def main() -> None:
    out = answers_only()
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    LineServer(answer, 0, out).run()


if __name__ == "__main__":
    main()
