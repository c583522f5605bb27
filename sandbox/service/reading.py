"""A request's text read into work for the pool. Nothing is run; what is wrong is told in one sentence."""

from collections.abc import Collection
from typing import NamedTuple

from pydantic import JsonValue, ValidationError

from kernelwright.problems import Problem, ProblemError, catalog_names, load_problem, problem_of_text
from kernelwright.problems.loading import check_name
from kernelwright.problems.record.base import first_fault
from kernelwright.problems.record.source import check_reference
from kernelwright.sandbox.authenticity.languages import candidate_of
from kernelwright.sandbox.machine.identity import ON_DEVICE
from kernelwright.sandbox.pool.protocol import Work
from kernelwright.sandbox.service.jobs import LONGEST_TEXT, JobRequest, NewJob, PlaceName
from kernelwright.sandbox.verdict.settings import Settings


class RequestError(Exception):
    """The request can not be met as it is; one sentence with the remedy."""


class _Wanted(NamedTuple):
    """Where a candidate is judged, and at which size of a catalog problem."""

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
    """Where there is a choice, the same one that `kernelwright judge` makes."""
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
