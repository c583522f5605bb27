"""The service's HTTP routes with their OpenAPI description, and its figures for Prometheus."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import suppress
from functools import partial
from html import escape
from typing import Annotated, Any

from fastapi import FastAPI, Query
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from pydantic.json_schema import models_json_schema
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, Response, StreamingResponse

from kernelwright.problems import ProblemError, catalog_names, load_problem
from kernelwright.problems.problem import Record
from kernelwright.sandbox.service.queue import Draining, JobQueue, QueueFull
from kernelwright.sandbox.service.requests import JobRequest, RequestError, TextReaders
from kernelwright.sandbox.service.store import Job, KeyTaken, ServiceFacts, StoreError
from kernelwright.sandbox.verdict.judge_version import JUDGE_VERSION, own_versions

MOST_WAIT_S = 300.0
"""Limit on the waiting of one request for a job; a client may send further requests."""
LARGEST_BODY_BYTES = 4 * 2**20
MOST_BODY_BYTES = 128 * 2**20
"""Bytes of all bodies that are being received. Beyond that the body that was begun first is refused."""
DRAINING_RETRY_S = 30
SILENCE_S = 15.0
"""Seconds after which a stream shows that it is alive."""
HEADERS = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer"}
SCHEMAS = "#/components/schemas/{model}"
JOB_REQUEST = {"$ref": SCHEMAS.format(model="JobRequest")}
UNKNOWN = "the job is not known; its id is in the answer to POST /v1/jobs"
INVALID = {422: "The request is not valid; `error` says why."}
FOUND = {200: "It is there.", 404: "There is none."} | INVALID
OUTCOMES = ("passed", "failed", "error", "cancelled")
STAGES = ("build", "check", "time")
Wait = Annotated[float, Query(ge=0, le=MOST_WAIT_S, description="Seconds to wait for the job's end.")]
Evidence = Annotated[
    str | None,
    Query(description="With any value: the complete verdict and its device too, under `verdict` and `judged_on`."),
]


class TooLarge(Exception):
    """The body is larger than any that is accepted."""


class TooMany(Exception):
    """Too many large bodies are being received."""

    retry_s = 1


async def read_body(request: Request, held: dict[asyncio.Timeout, int]) -> bytes:
    """Return the body; `held` has the bytes of all that are begun, in order. Raises `TooLarge` and `TooMany`."""
    body, limit = bytearray(), asyncio.timeout(None)
    try:
        async with limit:
            async for chunk in request.stream():
                body += chunk
                if len(body) > LARGEST_BODY_BYTES:
                    raise TooLarge
                held[limit] = len(body)
                if sum(held.values()) > MOST_BODY_BYTES:
                    first = next(iter(held))
                    del held[first]
                    first.reschedule(0)
    except TimeoutError:
        raise TooMany from None
    finally:
        held.pop(limit, None)
    return bytes(body)


class Figures(Collector):
    """Figures of the queue. `late` counts connections that were ended because they were slow."""

    def __init__(self, queue: JobQueue, late: Counter[str]) -> None:
        self._queue, self._late = queue, late

    def collect(self) -> Iterator[Metric]:
        queue, counts = self._queue, self._queue.counts
        gauge, counter = partial(_family, GaugeMetricFamily), partial(_family, CounterMetricFamily)
        tallies = {name: group.tally for name, group in queue.groups.items()}
        busy = {
            f"{name} {device.name}": tallies[name].busy_s.get(device.name, 0.0)
            for name, group in queue.groups.items()
            for device in group.devices
        }
        yield gauge("service_info", "The judge that answers.", {str(JUDGE_VERSION): 1}, "judge_version")
        yield counter("jobs_accepted", "Jobs taken since the start.", {"": counts.accepted})
        yield counter("jobs", "Jobs that ended.", dict.fromkeys(OUTCOMES, 0) | counts.ended, "outcome")
        yield counter("refused", "Requests refused.", counts.refused + self._late, "reason")
        yield gauge("jobs_open", "Jobs that have not ended.", {"": queue.open_jobs})
        yield gauge("jobs_judging", "Of these, those that were taken up.", {"": queue.running})
        yield gauge("queue_limit", "How many may be open.", {"": queue.limit})
        yield counter("judging_seconds", "From taking a job up to its end.", {"": counts.judged_s})
        for what in ("begun", "ended", "lost"):
            stages: Counter[str] = Counter(dict.fromkeys(STAGES, 0))
            for tally in tallies.values():
                stages.update(getattr(tally, what))
            yield counter(f"stages_{what}", f"Stages {what}.", stages, "stage")
        yield counter("device_busy_seconds", "Time that a device was in use.", busy, "device")
        yield gauge("draining", "Whether it is about to end.", {"": int(queue.draining)})


def _family(kind: Any, name: str, words: str, values: dict[str, Any], label: str | None = None) -> Metric:
    family = kind(f"kernelwright_{name}", words, labels=[label] if label else [])
    for value_name, value in values.items():
        family.add_metric([value_name] if label else [], value)
    return family


def _answers(words: dict[int, str], model: type[Record] | None = None) -> dict[int | str, dict[str, Any]]:
    """Return FastAPI's description of answers by their status; those below 300 are of the model."""
    shown = {"model": model} if model else {}
    return {status: {"description": said} | (shown if status < 300 else {}) for status, said in words.items()}


def application(queue: JobQueue, texts: TextReaders, late: Counter[str]) -> FastAPI:
    """Return the application over a queue; `texts` reads requests, `late` counts connections ended as too slow."""
    refused, registry = queue.counts.refused, CollectorRegistry()
    bodies: dict[asyncio.Timeout, int] = {}
    registry.register(Figures(queue, late))
    ProcessCollector(registry=registry)

    def counted(status: int, reason: str, sentence: str | None = None) -> Callable[[Request, Any], Response]:
        def answer(_: Request, error: Exception) -> Response:
            refused[reason] += 1
            again = {"retry-after": str(getattr(error, "retry_s", DRAINING_RETRY_S))} if status in (429, 503) else {}
            return JSONResponse({"error": sentence or str(error)}, status, again)

        return answer

    def invalid(request: Request, error: RequestValidationError) -> Response:
        fault = error.errors()[0]
        sentence = f"{fault['loc'][-1]} is {fault['input']!r}: {fault['msg']}; see /docs"
        return counted(422, "request", sentence)(request, error)

    app = FastAPI(
        title="kernelwright",
        version="1",
        description="A judge of generated kernels that stays warm.",
        docs_url=None,
        redoc_url=None,
        responses=_answers({401: "The token is missing or wrong."}),
        exception_handlers={
            TooLarge: counted(413, "size", f"the body is larger than {LARGEST_BODY_BYTES // 2**20} MiB"),
            TooMany: counted(503, "bodies", "too many large requests are being sent; send it again"),
            RequestError: counted(422, "request"),
            ProblemError: counted(422, "request"),
            RequestValidationError: invalid,
            KeyTaken: counted(409, "key", "another request was sent with this key; take a new one"),
            QueueFull: counted(429, "full"),
            Draining: counted(503, "draining", "the service is about to end; ask again when it is back"),
            StoreError: counted(503, "store"),
            ClientDisconnect: counted(400, "half", "the request was not complete"),
            404: lambda *_: refusal(404, "there is nothing at this path; see /docs"),
            405: lambda *_: refusal(405, "that is not done here; see /docs"),
        },
    )

    async def shown(job: Job, evidence: str | None, unfinished: int = 200) -> Response:
        found = job.model_dump(mode="json")
        if evidence is not None:
            found |= await queue.store.do(queue.store.evidence, job.id)
        ended = job.state in ("done", "cancelled")
        # By `json`: what a candidate has printed need not be text that starlette would encode.
        return Response(json.dumps(found), 200 if ended else unfinished, HEADERS, "application/json")

    @app.post(
        "/v1/jobs",
        summary="Have a candidate judged.",
        responses=_answers(
            {
                200: "It has ended: with `wait`, or since its key was known.",
                202: "It is kept, and will be judged.",
                409: "The key belongs to another request.",
                413: "The body is too large.",
                415: "The body is not said to be JSON.",
                429: "The queue is full; Retry-After says when to ask again.",
                503: "The service is busy, about to end or cannot write; Retry-After says when to ask again.",
            }
            | INVALID,
            Job,
        ),
        openapi_extra={"requestBody": {"required": True, "content": {"application/json": {"schema": JOB_REQUEST}}}},
    )
    async def submit(request: Request, wait: Wait = 0.0, evidence: Evidence = None) -> Response:
        if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
            return refusal(415, "send the job as JSON, with `Content-Type: application/json`")
        try:
            text = (await read_body(request, bodies)).decode()
        except UnicodeDecodeError:
            return refusal(400, "the body is not UTF-8")
        job = await queue.accept(await texts.read(text, list(queue.groups)))
        if wait > 0:
            job = await _unless_gone(request, queue.job(job.id, wait)) or job
        return await shown(job, evidence, 202)

    @app.get("/v1/jobs/{id}", summary="A job in its present state.", responses=_answers(FOUND, Job))
    async def fetch(request: Request, id: str, wait: Wait = 0.0, evidence: Evidence = None) -> Response:
        job = await _unless_gone(request, queue.job(id, wait))
        return refusal(404, UNKNOWN) if job is None else await shown(job, evidence)

    @app.delete("/v1/jobs/{id}", summary="Cancel a job.", responses=_answers(FOUND, Job))
    async def cancel(id: str, evidence: Evidence = None) -> Response:
        job = await queue.cancel(id)
        return refusal(404, UNKNOWN) if job is None else await shown(job, evidence)

    @app.get(
        "/v1/jobs/{id}/events",
        summary="A job's steps as server-sent events: queued, building, built, judging, lost, done, cancelled.",
        responses=_answers(FOUND),
    )
    async def events(id: str) -> Response:
        if await queue.job(id) is None:
            return refusal(404, UNKNOWN)
        return StreamingResponse(_stream(queue, id), media_type="text/event-stream", headers=HEADERS)

    @app.get("/v1/problems", summary="The names of the catalog.")
    async def problems() -> dict[str, tuple[str, ...]]:
        return {"problems": catalog_names()}

    @app.get(
        "/v1/problems/{name}",
        summary="A problem of the catalog with its digest, as `record` takes it.",
        responses=_answers(FOUND),
    )
    async def problem(
        name: str,
        size: Annotated[str | None, Query(description="cpu or gpu; default: cpu.")] = None,
        dtype: Annotated[str | None, Query(description="float32, float16 or bfloat16; default: as it is.")] = None,
    ) -> Response:
        if name not in catalog_names():
            return refusal(404, f"no problem {name!r} in the catalog; there are: {', '.join(catalog_names())}")
        found = await asyncio.to_thread(load_problem, name, size, dtype)
        return JSONResponse(found.model_dump(mode="json") | {"digest": found.digest})

    @app.get("/v1/service", summary="Devices and version of the service.")
    async def service() -> ServiceFacts:
        return facts(queue)

    @app.get(
        "/healthz", summary="Whether it takes jobs; needs no token.", responses={503: {"description": "It does not."}}
    )
    async def health() -> Response:
        state = "draining" if queue.draining else "ok"
        if not all(group.devices for group in queue.groups.values()):
            state = "no device"
        return JSONResponse({"status": state}, 200 if state == "ok" else 503)

    @app.get("/metrics", summary="Figures for Prometheus.")
    async def metrics() -> Response:
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_PLAIN_0_0_4)

    @app.get("/docs", include_in_schema=False)
    async def docs() -> Response:
        policy = {"Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'"}
        return HTMLResponse(page(app.openapi()), headers=policy)

    app.openapi = lambda: _described(app)
    return app


def _described(app: FastAPI) -> dict[str, Any]:
    """Return the OpenAPI document, with the request's schema, which FastAPI does not see."""
    if app.openapi_schema is None:
        document = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
        _, found = models_json_schema([(JobRequest, "validation")], ref_template=SCHEMAS)
        document["components"]["schemas"] |= found["$defs"]
        document["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        app.openapi_schema = document | {"security": [{"token": []}, {}]}
    return dict(app.openapi_schema)


def page(document: dict[str, Any]) -> str:
    """Return the OpenAPI document as a page without scripts, for machines without a network too."""
    parts = ["<!doctype html><meta charset=utf-8><title>kernelwright serve</title>"]
    parts.append(
        "<style>body{font:15px system-ui;max-width:60em;margin:2em auto;padding:0 1em}code{background:#8882}</style>"
    )
    parts.append("<h1>kernelwright serve</h1><p>The same for programs: <a href=/openapi.json>/openapi.json</a>.</p>")
    for path, methods in document["paths"].items():
        for method, one in methods.items():
            given = [(f"?{name['name']}=", name.get("description", "")) for name in one.get("parameters", ())]
            given += [(status, answer["description"]) for status, answer in one["responses"].items()]
            items = "".join(f"<li><code>{escape(name)}</code> {escape(words)}</li>" for name, words in given)
            parts.append(
                f"<h3><code>{method.upper()} {path}</code></h3><p>{escape(one['summary'])}</p><ul>{items}</ul>"
            )
    for name, schema in document["components"]["schemas"].items():
        parts.append(f"<h3>{name}</h3><pre>{escape(json.dumps(schema, indent=1))}</pre>")
    return "".join(parts)


def facts(queue: JobQueue) -> ServiceFacts:
    devices = {name: [one.model_dump(mode="json") for one in group.devices] for name, group in queue.groups.items()}
    room = {name: group.capacity for name, group in queue.groups.items()}
    return ServiceFacts(**own_versions(), devices=devices, room=room, queue=queue.limit, draining=queue.draining)


async def _unless_gone(request: Request, waiting: Awaitable[Job | None]) -> Job | None:
    """Return the awaited job. Raises `ClientDisconnect` where the client closes its connection meanwhile."""

    async def gone() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    task, leaving = asyncio.ensure_future(waiting), asyncio.ensure_future(gone())
    try:
        await asyncio.wait([task, leaving], return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnect
        return task.result()
    finally:
        task.cancel()
        leaving.cancel()


async def _stream(queue: JobQueue, id: str) -> AsyncIterator[str]:
    with suppress(StoreError):
        async for event in queue.events(id, SILENCE_S):
            yield ": still here\n\n" if event is None else f"event: {event}\ndata: {json.dumps({'id': id})}\n\n"


def refusal(status: int, sentence: str) -> JSONResponse:
    return JSONResponse({"error": sentence}, status)
