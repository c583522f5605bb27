"""The service's answers over HTTP. What a client may ask for, and what it is told."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from kernelwright.problems import ProblemError, catalog_names, load_problem
from kernelwright.sandbox.service.http_limits import (
    LARGEST_BODY_BYTES,
    MOST_BODIES,
    Access,
    Guard,
    TooLarge,
    read_body,
    told,
)
from kernelwright.sandbox.service.job_queue import Draining, JobQueue, QueueFull
from kernelwright.sandbox.service.job_store import KeyTaken, StoreError
from kernelwright.sandbox.service.jobs import MOST_WAIT_S, Job, ServiceFacts
from kernelwright.sandbox.service.openapi import description, page
from kernelwright.sandbox.service.prometheus import metrics_text
from kernelwright.sandbox.service.reading import RequestError
from kernelwright.sandbox.service.text_process import TextProcess
from kernelwright.sandbox.verdict.judge_version import own_versions

HEADERS = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer"}
SILENCE_S = 15.0
"""After which a stream shows that it is alive."""
DRAINING_RETRY_S = 30
UNKNOWN = "there is no such job; its id is in the answer to POST /v1/jobs"
Endpoint = Callable[[Request], Awaitable[Response]]


def application(queue: JobQueue, texts: TextProcess, access: Access, late: Counter[str]) -> Starlette:
    """The application over a queue; `texts` reads requests, `late` counts connections that were ended as too slow."""
    refused, reading = queue.counts.refused, asyncio.Semaphore(MOST_BODIES)

    async def submit(request: Request) -> Response:
        if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
            return told(415, "send the job as JSON, with `Content-Type: application/json`")
        wait_s = _wait_s(request)
        async with reading:
            try:
                text = (await read_body(request)).decode()
            except UnicodeDecodeError:
                return told(400, "the body is no UTF-8")
            new = await texts.read(text, list(queue.places))
        job = await queue.accept(new)
        if wait_s > 0:
            job = await _unless_gone(request, queue.job(job.id, wait_s)) or job
        return await _shown(request, job)

    async def fetch(request: Request) -> Response:
        job = await _unless_gone(request, queue.job(request.path_params["id"], _wait_s(request)))
        return told(404, UNKNOWN) if job is None else await _shown(request, job, 200)

    async def cancel(request: Request) -> Response:
        job = await queue.cancel(request.path_params["id"])
        return told(404, UNKNOWN) if job is None else await _shown(request, job, 200)

    async def events(request: Request) -> Response:
        id = request.path_params["id"]
        if await queue.job(id) is None:
            return told(404, UNKNOWN)
        return StreamingResponse(_stream(queue, id), media_type="text/event-stream", headers=HEADERS)

    async def problem(request: Request) -> Response:
        name, asked = request.path_params["name"], request.query_params
        if name not in catalog_names():
            return told(404, f"no problem {name!r} in the catalog; there are: {', '.join(catalog_names())}")
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

    def refusal(status: int, reason: str, sentence: str | None = None) -> Callable[[Request, Exception], Response]:
        def answer(_: Request, error: Exception) -> Response:
            refused[reason] += 1
            response = told(status, sentence or str(error))
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
        middleware=[Middleware(Guard, access=access, refused=refused)],
        exception_handlers={
            TooLarge: refusal(413, "size", largest),
            RequestError: refusal(422, "request"),
            ProblemError: refusal(422, "request"),
            KeyTaken: refusal(409, "key", "another request was sent with this key; take a new one"),
            QueueFull: refusal(429, "full"),
            Draining: refusal(503, "draining", "the service is about to end; ask again when it is back"),
            StoreError: refusal(503, "store"),
            ClientDisconnect: refusal(400, "half", "the request was not sent whole"),
            404: lambda *_: told(404, "there is no such thing here; see /docs"),
            405: lambda *_: told(405, "that is not done here; see /docs"),
        },
    )


def facts(queue: JobQueue) -> ServiceFacts:
    """What clients of ours ask before they send anything."""
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
    """What is waited for, unless the client goes away meanwhile: then nobody waits."""
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
