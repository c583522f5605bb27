"""The service's answers over HTTP: its paths, their description, and its figures for Prometheus."""

import asyncio
import json
import os
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import suppress
from functools import cache
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

from pydantic.json_schema import models_json_schema
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from kernelwright.problems import ProblemError, catalog_names, load_problem
from kernelwright.sandbox.service.queue import Draining, JobQueue, QueueFull
from kernelwright.sandbox.service.requests import JobRequest, RequestError, TextProcess
from kernelwright.sandbox.service.store import Job, KeyTaken, ServiceFacts, StoreError
from kernelwright.sandbox.verdict.judge_version import JUDGE_VERSION, own_versions

MOST_WAIT_S = 300.0
"""Limit on the waiting of one request for a job; a client may send further requests."""
LARGEST_BODY_BYTES = 4 * 2**20
MOST_BODIES = 32
"""Bodies that are received at a time."""


class DescribedPath(NamedTuple):
    method: str
    path: str
    summary: str
    answers: dict[int, str]
    query: Mapping[str, str] = {}
    result: str | None = None


WAIT = {"wait": f"Seconds to wait for the job's end, at most {MOST_WAIT_S:.0f}; default: 0."}
EVIDENCE = {"evidence": "With any value: the whole verdict and its device too, under `verdict` and `judged_on`."}
REFUSALS = {401: "The token is missing or wrong."}
PATHS = (
    DescribedPath(
        "post",
        "/v1/jobs",
        "Have a candidate judged.",
        {
            200: "It has ended: with `wait`, or since its key was known.",
            202: "It is kept, and will be judged.",
            409: "The key belongs to another request.",
            413: "The body is too large.",
            415: "The body is not said to be JSON.",
            422: "The request can not be met; `error` says why.",
            429: "The queue is full; Retry-After says when to ask again.",
            503: "The service is about to end, or can not write; Retry-After says when to ask again.",
        },
        WAIT | EVIDENCE,
        "Job",
    ),
    DescribedPath(
        "get", "/v1/jobs/{id}", "A job as it stands.", {200: "The job.", 404: "There is none."}, WAIT | EVIDENCE, "Job"
    ),
    DescribedPath(
        "delete", "/v1/jobs/{id}", "Cancel a job.", {200: "The job, as it ended.", 404: "There is none."}, {}, "Job"
    ),
    DescribedPath(
        "get",
        "/v1/jobs/{id}/events",
        "A job's steps as server-sent events: queued, building, built, judging, lost, done, cancelled.",
        {200: "The stream, up to the job's end.", 404: "There is none."},
    ),
    DescribedPath("get", "/v1/problems", "The names of the catalog.", {200: "The names."}),
    DescribedPath(
        "get",
        "/v1/problems/{name}",
        "A problem of the catalog, with its reference.",
        {
            200: "The problem, as `record` takes it, and its digest.",
            404: "There is none.",
            422: "No such size or dtype.",
        },
        {"size": "cpu or gpu; default: cpu.", "dtype": "float32, float16 or bfloat16; default: as it is."},
    ),
    DescribedPath(
        "get", "/v1/service", "Devices and version of the service.", {200: "What it is."}, {}, "ServiceFacts"
    ),
    DescribedPath(
        "get", "/healthz", "Whether it takes jobs; asks for no token.", {200: "It does.", 503: "It does not."}
    ),
    DescribedPath("get", "/metrics", "Figures for Prometheus.", {200: "The figures."}),
)


@cache
def description() -> dict[str, Any]:
    """Return the OpenAPI document."""
    _, schemas = models_json_schema(
        [(JobRequest, "validation"), (Job, "validation"), (ServiceFacts, "validation")],
        ref_template="#/components/schemas/{model}",
    )
    paths: dict[str, Any] = {}
    for one in PATHS:
        paths.setdefault(one.path, {})[one.method] = _operation(one)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "kernelwright",
            "version": "1",
            "description": "A judge of generated kernels that stays warm.",
        },
        "paths": paths,
        "components": {
            "schemas": schemas["$defs"],
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"token": []}, {}],
    }


def _operation(one: DescribedPath) -> dict[str, Any]:
    named = {name: ("path", "") for name in ("id", "name") if f"{{{name}}}" in one.path}
    named |= {name: ("query", words) for name, words in one.query.items()}
    parameters = [
        {"name": name, "in": place, "required": place == "path", "description": words, "schema": {"type": "string"}}
        for name, (place, words) in named.items()
    ]
    answers: dict[str, Any] = {
        str(status): {"description": words} for status, words in (one.answers | REFUSALS).items()
    }
    for status in {"200", "202"} & set(answers) if one.result else ():
        answers[status]["content"] = _json_of(str(one.result))
    operation: dict[str, Any] = {"summary": one.summary, "parameters": parameters, "responses": answers}
    if one.method == "post":
        operation["requestBody"] = {"required": True, "content": _json_of("JobRequest")}
    return operation


def _json_of(model: str) -> dict[str, Any]:
    return {"application/json": {"schema": {"$ref": f"#/components/schemas/{model}"}}}


@cache
def page() -> str:
    parts = ["<!doctype html><meta charset=utf-8><title>kernelwright serve</title>"]
    parts.append(
        "<style>body{font:15px system-ui;max-width:60em;margin:2em auto;padding:0 1em}code{background:#8882}</style>"
    )
    parts.append("<h1>kernelwright serve</h1><p>The same for programs: <a href=/openapi.json>/openapi.json</a>.</p>")
    for one in PATHS:
        query = "".join(f"<li><code>?{name}=</code> {escape(words)}</li>" for name, words in one.query.items())
        answers = "".join(f"<li>{status}: {escape(words)}</li>" for status, words in one.answers.items())
        parts.append(f"<h3><code>{one.method.upper()} {one.path}</code></h3><p>{escape(one.summary)}</p>")
        parts.append(f"<ul>{query}{answers}</ul>")
    for name, schema in description()["components"]["schemas"].items():
        parts.append(f"<h3>{name}</h3><pre>{escape(json.dumps(schema, indent=1))}</pre>")
    return "".join(parts)


OUTCOMES = ("passed", "failed", "error", "cancelled")
STAGES = ("build", "check", "time")


def metrics_text(queue: JobQueue, late: Counter[str]) -> str:
    """Return all figures; `late` counts connections that were ended because they were slow."""
    counts, places = queue.counts, queue.places
    stages: dict[str, Counter[str]] = {"begun": Counter(), "ended": Counter(), "lost": Counter()}
    busy: dict[str, float] = {}
    for name, place in places.items():
        for what, counter in stages.items():
            counter.update(getattr(place.tally, what))
        busy |= {f"{name} {device.name}": place.tally.busy_s.get(device.name, 0.0) for device in place.devices}
    resident_bytes = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    parts = [
        _metric("service_info", "gauge", "The judge that answers.", {f'judge_version="{JUDGE_VERSION}"': 1}),
        _metric("jobs_accepted_total", "counter", "Jobs taken since the start.", {"": counts.accepted}),
        _metric("jobs_total", "counter", "Jobs that ended.", _by("outcome", counts.ended, OUTCOMES)),
        _metric("refused_total", "counter", "Requests refused.", _by("reason", counts.refused + late)),
        _metric("jobs_open", "gauge", "Jobs that have not ended.", {"": queue.open_jobs}),
        _metric("jobs_judging", "gauge", "Of these, those that were taken up.", {"": queue.running}),
        _metric("queue_limit", "gauge", "How many may be open.", {"": queue.limit}),
        _metric("judging_seconds_total", "counter", "From taking a job up to its end.", {"": counts.judged_s}),
        *(
            _metric(f"stages_{what}_total", "counter", f"Stages {what}.", _by("stage", c, STAGES))
            for what, c in stages.items()
        ),
        _metric("device_busy_seconds_total", "counter", "Time that a device was in use.", _by("device", busy)),
        _metric("draining", "gauge", "Whether it is about to end.", {"": int(queue.draining)}),
        f"# TYPE process_resident_memory_bytes gauge\nprocess_resident_memory_bytes {resident_bytes}\n",
    ]
    return "".join(parts)


def _by(label: str, values: Mapping[str, float], always: tuple[str, ...] = ()) -> dict[str, float]:
    escaped = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
    names = dict.fromkeys((*always, *sorted(values)))
    return {f'{label}="{name.translate(escaped)}"': values.get(name, 0) for name in names}


def _metric(name: str, kind: str, words: str, values: Mapping[str, float]) -> str:
    head = f"# HELP kernelwright_{name} {words}\n# TYPE kernelwright_{name} {kind}\n"
    lines = (
        f"kernelwright_{name}{'{' + labels + '}' if labels else ''} {value:g}\n" for labels, value in values.items()
    )
    return head + "".join(lines)


HEADERS = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer"}
SILENCE_S = 15.0
"""Seconds after which a stream shows that it is alive."""
DRAINING_RETRY_S = 30
UNKNOWN = "there is no such job; its id is in the answer to POST /v1/jobs"


def application(queue: JobQueue, texts: TextProcess, late: Counter[str]) -> Starlette:
    """Return the application over a queue; `texts` reads requests, `late` counts connections ended as too slow."""
    refused, reading = queue.counts.refused, asyncio.Semaphore(MOST_BODIES)

    async def submit(request: Request) -> Response:
        if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
            return refusal(415, "send the job as JSON, with `Content-Type: application/json`")
        wait_s = _wait_s(request)
        async with reading:
            try:
                text = (await read_body(request)).decode()
            except UnicodeDecodeError:
                return refusal(400, "the body is no UTF-8")
            new = await texts.read(text, list(queue.places))
        job = await queue.accept(new)
        if wait_s > 0:
            job = await _unless_gone(request, queue.job(job.id, wait_s)) or job
        return await _shown(request, job)

    async def fetch(request: Request) -> Response:
        job = await _unless_gone(request, queue.job(request.path_params["id"], _wait_s(request)))
        return refusal(404, UNKNOWN) if job is None else await _shown(request, job, 200)

    async def cancel(request: Request) -> Response:
        job = await queue.cancel(request.path_params["id"])
        return refusal(404, UNKNOWN) if job is None else await _shown(request, job, 200)

    async def events(request: Request) -> Response:
        id = request.path_params["id"]
        if await queue.job(id) is None:
            return refusal(404, UNKNOWN)
        return StreamingResponse(_stream(queue, id), media_type="text/event-stream", headers=HEADERS)

    async def problem(request: Request) -> Response:
        name, asked = request.path_params["name"], request.query_params
        if name not in catalog_names():
            return refusal(404, f"no problem {name!r} in the catalog; there are: {', '.join(catalog_names())}")
        found = await asyncio.to_thread(load_problem, name, asked.get("size"), asked.get("dtype"))
        return JSONResponse(found.model_dump(mode="json") | {"digest": found.digest})

    async def problems(request: Request) -> Response:
        return JSONResponse({"problems": list(catalog_names())})

    async def service(request: Request) -> Response:
        return JSONResponse(facts(queue).model_dump(mode="json"))

    async def health(request: Request) -> Response:
        well = not queue.draining and all(place.devices for place in queue.places.values())
        return JSONResponse(
            {"status": "ok" if well else "draining" if queue.draining else "no device"}, 503 - 303 * well
        )

    async def metrics(request: Request) -> Response:
        return PlainTextResponse(metrics_text(queue, late), media_type="text/plain; version=0.0.4")

    async def openapi(request: Request) -> Response:
        return JSONResponse(description())

    async def docs(request: Request) -> Response:
        policy = {"Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'"}
        return HTMLResponse(page(), headers=policy)

    async def _shown(request: Request, job: Job, unfinished: int = 202) -> Response:
        shown = job.model_dump(mode="json")
        ended = job.state in ("done", "cancelled")
        if "evidence" in request.query_params:
            shown |= await queue.store.do(queue.store.evidence, job.id)
        return Response(json.dumps(shown), 200 if ended else unfinished, HEADERS, "application/json")

    def counted(status: int, reason: str, sentence: str | None = None) -> Callable[[Request, Exception], Response]:
        def answer(_: Request, error: Exception) -> Response:
            refused[reason] += 1
            response = refusal(status, sentence or str(error))
            if isinstance(error, QueueFull | Draining | StoreError):
                response.headers["retry-after"] = str(getattr(error, "retry_s", DRAINING_RETRY_S))
            return response

        return answer

    largest = f"the body is larger than {LARGEST_BODY_BYTES // 2**20} MiB"
    return Starlette(
        routes=[
            Route("/v1/jobs", submit, methods=["POST"]),
            Route("/v1/jobs/{id}", fetch, methods=["GET"]),
            Route("/v1/jobs/{id}", cancel, methods=["DELETE"]),
            Route("/v1/jobs/{id}/events", events),
            Route("/v1/problems", problems),
            Route("/v1/problems/{name}", problem),
            Route("/v1/service", service),
            Route("/healthz", health),
            Route("/metrics", metrics),
            Route("/openapi.json", openapi),
            Route("/docs", docs),
        ],
        exception_handlers={
            TooLarge: counted(413, "size", largest),
            RequestError: counted(422, "request"),
            ProblemError: counted(422, "request"),
            KeyTaken: counted(409, "key", "another request was sent with this key; take a new one"),
            QueueFull: counted(429, "full"),
            Draining: counted(503, "draining", "the service is about to end; ask again when it is back"),
            StoreError: counted(503, "store"),
            ClientDisconnect: counted(400, "half", "the request was not sent whole"),
            404: lambda *_: refusal(404, "there is no such thing here; see /docs"),
            405: lambda *_: refusal(405, "that is not done here; see /docs"),
        },
    )


def facts(queue: JobQueue) -> ServiceFacts:
    devices = {name: [one.model_dump(mode="json") for one in place.devices] for name, place in queue.places.items()}
    room = {name: place.room for name, place in queue.places.items()}
    return ServiceFacts(**own_versions(), devices=devices, room=room, queue=queue.limit, draining=queue.draining)


def _wait_s(request: Request) -> float:
    text = request.query_params.get("wait", "0")
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= MOST_WAIT_S:
        raise RequestError(f"wait is {text!r}; give seconds from 0 to {MOST_WAIT_S:.0f}")
    return seconds


async def _unless_gone(request: Request, waiting: Awaitable[Job | None]) -> Job | None:
    """Return the awaited job. Raises `ClientDisconnect` where the client closes its connection meanwhile."""
    task = asyncio.ensure_future(waiting)
    gone = asyncio.ensure_future(_gone(request))
    try:
        await asyncio.wait([task, gone], return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnect
        return task.result()
    finally:
        for one in (task, gone):
            one.cancel()


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _stream(queue: JobQueue, id: str) -> AsyncIterator[str]:
    with suppress(StoreError):
        async for event in queue.events(id, SILENCE_S):
            yield ": still here\n\n" if event is None else f"event: {event}\ndata: {json.dumps({'id': id})}\n\n"


class TooLarge(Exception):
    """The body is larger than any that is accepted."""


def refusal(status: int, sentence: str) -> JSONResponse:
    return JSONResponse({"error": sentence}, status)


async def read_body(request: Request) -> bytes:
    """Return the body. Raises `TooLarge`, before it is read where its length is given."""
    length = request.headers.get("content-length", "")
    if length.isdigit() and int(length) > LARGEST_BODY_BYTES:
        raise TooLarge
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > LARGEST_BODY_BYTES:
            raise TooLarge
    return bytes(body)
