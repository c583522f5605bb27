"""The live view: the same page, served on this machine alone while a run or a score goes on.

It listens on the loopback interface and answers only to its names. So a web page elsewhere cannot reach it by a name
that it points at this machine. It only reads.
"""

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Sequence
from html import escape
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from kernelwright.agent.log.events import RunLogError
from kernelwright.evals.inspector.pages import RunModel, page
from kernelwright.evals.verdict_store import last_judgement, log_of

HOSTS = ("127.0.0.1", "localhost")
POLL_S = 0.5
HEARTBEAT = 30
"""Polls without news after which the connection is shown to be alive."""
HEADERS = {
    "Cache-Control": "no-store",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


class LiveRuns:
    def __init__(self, folders: Sequence[Path]) -> None:
        self.folders = {folder.resolve().name: folder for folder in folders}
        self._models: dict[str, tuple[int | None, RunModel]] = {}
        """With the last judgement of a score, which is read again when it has grown."""
        self._lock = threading.Lock()

    def model(self, name: str) -> RunModel:
        if name not in self.folders:
            raise RunLogError(f"no run {name!r} is shown here; there are: {', '.join(self.folders)}")
        folder = self.folders[name]
        with self._lock:
            last = last_judgement(folder)
            if name not in self._models or self._models[name][0] != last:
                self._models[name] = last, RunModel(log_of(folder))
            self._models[name][1].refresh()
            return self._models[name][1]

    def last_event(self, name: str) -> int:
        return last_judgement(self.folders[name]) or self.model(name).log.last_seq()

    def close(self) -> None:
        for _, model in self._models.values():
            model.log.close()


def application(runs: LiveRuns) -> Starlette:
    """Return the application; serve it on the loopback interface only."""

    def home(_: Request) -> Response:
        links = "".join(f'<li><a href="/run/{escape(name)}/">{escape(name)}</a></li>' for name in runs.folders)
        return HTMLResponse(f"<!doctype html><title>runs</title><h1>Runs</h1><ul>{links}</ul>", headers=HEADERS)

    def run_page(request: Request) -> Response:
        name = request.path_params["name"]
        runs.model(name)
        return HTMLResponse(page(f"kernelwright: {name}", "live", {}), headers=HEADERS)

    def index(request: Request) -> Response:
        return _json(runs.model(request.path_params["name"]).index())

    def attempt(request: Request) -> Response:
        problem, number = request.query_params.get("problem", ""), request.query_params.get("number", "")
        if not number.isdecimal():
            raise RunLogError(f"the attempt's number is {number!r}; give one from 1 on")
        return _json(runs.model(request.path_params["name"]).detail(problem, int(number)))

    def reference(request: Request) -> Response:
        problem = request.query_params.get("problem", "")
        return _json({"source": runs.model(request.path_params["name"]).log.problem(problem).source})

    async def events(request: Request) -> Response:
        name = request.path_params["name"]
        await asyncio.to_thread(runs.model, name)
        return StreamingResponse(_growth(runs, name, request), media_type="text/event-stream", headers=HEADERS)

    return Starlette(
        routes=[
            Route("/", home),
            Route("/run/{name}/", run_page),
            Route("/run/{name}/index.json", index),
            Route("/run/{name}/attempt.json", attempt),
            Route("/run/{name}/reference.json", reference),
            Route("/run/{name}/events", events),
        ],
        middleware=[Middleware(TrustedHostMiddleware, allowed_hosts=list(HOSTS), www_redirect=False)],
        exception_handlers={
            RunLogError: lambda _, error: PlainTextResponse(str(error), status_code=404, headers=HEADERS)
        },
    )


async def _growth(runs: LiveRuns, name: str, request: Request) -> AsyncIterator[str]:
    seen = await asyncio.to_thread(runs.last_event, name)
    yield f"event: opened\ndata: {seen}\n\n"
    quiet = 0
    while not await request.is_disconnected():
        await asyncio.sleep(POLL_S)
        last = await asyncio.to_thread(runs.last_event, name)
        quiet = 0 if last > seen else quiet + 1
        if last > seen:
            seen = last
            yield f"event: grown\ndata: {seen}\n\n"
        elif quiet % HEARTBEAT == 0:
            yield ": still here\n\n"


def _json(value: Any) -> Response:
    return Response(json.dumps(value), media_type="application/json", headers=HEADERS)


def serve(folders: Sequence[Path], port: int) -> None:
    """Serve until Ctrl-C. With port 0 the system chooses one."""
    import socket

    import uvicorn

    runs = LiveRuns(folders)
    with socket.socket(socket.AF_INET) as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((HOSTS[0], port))
        listening.listen()
        only = next(iter(runs.folders)) if len(runs.folders) == 1 else None
        place = f"run/{only}/" if only else ""
        print(f"http://{HOSTS[0]}:{listening.getsockname()[1]}/{place}  (Ctrl-C ends it)", flush=True)
        config = uvicorn.Config(application(runs), log_level="warning", timeout_graceful_shutdown=1)
        try:
            uvicorn.Server(config).run(sockets=[listening])
        finally:
            runs.close()
