"""A process beside the service that looks into texts of clients: `python -m kernelwright.sandbox.service.text_process`.

A source can be written so that parsing it takes all memory, minutes, or the parser's life. Then it is this process that
ends, and the request is refused; the next one is read by a new process.
"""

import asyncio
import contextlib
import json
import resource
import signal
import sys
from collections.abc import Collection
from typing import Any, NamedTuple

from pydantic import JsonValue, TypeAdapter, ValidationError

from kernelwright.problems import Problem, ProblemError, catalog_names, load_problem, problem_of_text
from kernelwright.problems.loading import check_name
from kernelwright.problems.problem import first_fault
from kernelwright.problems.source import check_reference
from kernelwright.sandbox.authenticity.scan import candidate_of
from kernelwright.sandbox.machine import ON_DEVICE
from kernelwright.sandbox.pool.local import Ended, LineProcess
from kernelwright.sandbox.pool.protocol import Work
from kernelwright.sandbox.service.job_store import LONGEST_TEXT, JobRequest, NewJob, PlaceName
from kernelwright.sandbox.verdict.report import report
from kernelwright.sandbox.verdict.settings import Settings
from kernelwright.sandbox.verdict.verdicts import Verdict


class RequestError(Exception):
    """The request can not be met as it is; one sentence with the remedy."""


class _Wanted(NamedTuple):
    place: PlaceName
    size: str | None


def read_request(text: str, places: Collection[PlaceName]) -> NewJob:
    """The job that a request's body asks for. Raises `RequestError`."""
    try:
        asked = JobRequest.model_validate_json(text)
    except ValidationError as error:
        fault = first_fault(error)
        raise RequestError(f"the request is not one: {fault.key}: {fault.said}; see /docs") from None
    candidate = candidate_of(asked.source)
    try:
        wanted = _wanted(asked, candidate.language, places)
        problem = _problem(asked, wanted.size)
    except ProblemError as error:
        raise RequestError(str(error)) from None
    work = Work(problem=problem, candidate=candidate, fresh=asked.fresh, beat=asked.beat, asks=_asks(asked))
    return NewJob(
        work=work.model_dump_json(),
        stage=asked.stage,
        place=wanted.place,
        problem=problem.name,
        priority=asked.priority,
        key=asked.key,
    )


def _wanted(asked: JobRequest, language: str, places: Collection[PlaceName]) -> _Wanted:
    on_device = language in ON_DEVICE
    size = asked.size or ("cpu" if asked.problem else (asked.record or {}).get("size"))
    fits_device = on_device or (language == "python" and size != "cpu" and "cuda" in places)
    place = asked.device or ("cuda" if fits_device or "cpu" not in places else "cpu")
    if place == "cpu" and on_device:
        raise RequestError(
            f"what is written in {language} runs on a CUDA device alone; leave `device` out, or give cuda"
        )
    if place not in places:
        raise RequestError(f"this service judges on {' and '.join(places)} alone; ask one that has {place}")
    return _Wanted(place, asked.size or ("gpu" if place == "cuda" and asked.problem else None))


def _problem(asked: JobRequest, size: str | None) -> Problem:
    """The problem, from the catalog or from what the client sent: no client names a file of this machine."""
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
        raise RequestError(f"`record` is no problem: {fault.key}: {fault.said}") from None
    if len(problem.source) > LONGEST_TEXT:
        raise RequestError(f"`record` has a source of more than {LONGEST_TEXT} characters; send a shorter one")
    check_name(problem.name)
    check_reference(problem.source, problem.name)
    return problem


def _asks(asked: JobRequest) -> dict[str, JsonValue]:
    """The settings that are asked for, for the worker to judge with."""
    asks = asked.settings.model_dump(mode="json", exclude_none=True)
    if asked.effort is not None:
        asks["effort"] = asked.effort
    try:
        Settings.model_validate(asks)
    except ValidationError as error:
        fault = first_fault(error)
        raise RequestError(f"`settings`: {fault.key}: {fault.said}") from None
    return asks


MODULE = "kernelwright.sandbox.service.text_process"
MEMORY_BYTES = 2 * 2**30
ANSWER_S = 5.0
"""For one text; the judge parses it several times, with others waiting for it."""
START_S = 120.0
VERDICT: TypeAdapter[Verdict] = TypeAdapter(Verdict)


class TextProcess:
    """Answers one question at a time; use it from one event loop, and close it."""

    def __init__(self) -> None:
        self._process: LineProcess | None = None
        self._turn = asyncio.Lock()

    async def read(self, text: str, places: Collection[PlaceName]) -> NewJob:
        """The job that a request asks for. Raises `RequestError`."""
        try:
            said = await self._ask({"read": text, "places": sorted(places)})
        except (Ended, TimeoutError):
            raise RequestError("the texts of this request can not be parsed in the time and memory there is") from None
        if "refused" in said:
            raise RequestError(said["refused"])
        return NewJob.model_validate(said["job"])

    async def report(self, verdict: Verdict) -> dict[str, Any]:
        """The object of `judge --json`, whose intervals take a while to derive."""
        try:
            return dict((await self._ask({"report": verdict.model_dump(mode="json")}))["report"])
        except (Ended, TimeoutError):
            return await asyncio.to_thread(report, verdict)

    async def _ask(self, question: dict[str, Any]) -> dict[str, Any]:
        """Whoever waits for a turn pays for nobody else's text. Raises `Ended` and `TimeoutError`."""
        async with self._turn:
            process = await self._started()
            try:
                return await asyncio.wait_for(process.ask(question), ANSWER_S)
            except (TimeoutError, asyncio.CancelledError):
                process.lose("nobody waits for its answer")
                raise

    async def _started(self) -> LineProcess:
        if self._process is not None and self._process.has_ended:
            await self.close()
        if self._process is None:
            self._process = await LineProcess.start(MODULE)
            await asyncio.wait_for(self._process.ask({}), START_S)
        return self._process

    async def close(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            await process.close()


def answer(question: dict[str, Any]) -> dict[str, Any]:
    if not {"read", "report"} & set(question):
        return {}
    if "report" in question:
        return {"report": report(VERDICT.validate_python(question["report"]))}
    try:
        return {"job": read_request(question["read"], question["places"]).model_dump(mode="json")}
    except RequestError as error:
        return {"refused": str(error)}


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    for line in sys.stdin:
        question = json.loads(line)
        if "cancel" in question:
            continue
        said = answer(question) | {"id": question["id"]}
        with contextlib.suppress(OSError):
            sys.stdout.write(json.dumps(said) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
