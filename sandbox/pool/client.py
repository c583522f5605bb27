"""A client of `kernelwright serve`, which sends a job once and waits for its end; and the executor of a service.

Each request has a connection of its own: a caller that is cancelled closes it, and leaves nothing else behind.
"""

import asyncio
import json
import os
import secrets
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from pydantic import Field, JsonValue, ValidationError

from kernelwright.problems import Problem
from kernelwright.problems.problem import Record
from kernelwright.sandbox.pool.executor import Answer, Device, Executor, ExecutorError, JobError, Product, Stage, Work
from kernelwright.sandbox.storage import cache_root
from kernelwright.sandbox.verdict.judge_version import other_version
from kernelwright.sandbox.verdict.settings import (
    Accuracy,
    BaselineGroup,
    CompileMode,
    JudgeSettings,
    JudgingEffort,
    WeightsPolicy,
)
from kernelwright.sandbox.verdict.verdicts import VERDICT

SERVICE_S_OWN = frozenset({"device", "cores"})
"""Settings that a job gives in another way, or that follow from the device."""


class JobSettings(Record):
    """Settings of a job: the effort of its verdict, and further measurements. All others are the service's own."""

    min_pairs: int | None = Field(default=None, ge=4, le=600)
    max_pairs: int | None = Field(default=None, ge=4, le=600)
    worker_pairs: int | None = Field(default=None, ge=1, le=10)
    warm_up: int | None = Field(default=None, ge=1, le=10)
    time_budget_s: float | None = Field(default=None, ge=0.05, le=60)
    interval_target: float | None = Field(default=None, ge=0.001, le=1)
    compiled: tuple[CompileMode, ...] | None = Field(default=None, max_length=4)
    baselines: tuple[BaselineGroup, ...] | None = Field(default=None, max_length=5)
    weights: WeightsPolicy | None = None
    sanitize: bool | None = None
    profile: bool | None = None
    effort: JudgingEffort | None = None
    accuracy: Accuracy | None = None


def chosen_for_jobs(settings: JudgeSettings) -> dict[str, JsonValue]:
    """Return the chosen settings, to be sent. Raises `ExecutorError` for those that are the service's to choose."""
    usual = JudgeSettings().model_dump(mode="json")
    chosen = settings.model_dump(mode="json", exclude_unset=True)
    wanted = {name: value for name, value in chosen.items() if name not in SERVICE_S_OWN and value != usual[name]}
    if own := sorted(set(wanted) - set(JobSettings.model_fields)):
        raise ExecutorError(f"{own[0]} is the service's own to choose; leave it out, or judge without --server")
    return wanted


SERVER, TOKEN = "KERNELWRIGHT_SERVER", "KERNELWRIGHT_TOKEN"
WAIT_S = 60
"""The service may delay an answer for so long to wait for a job's end."""
SLACK_S = 30.0
PATIENCE_S = 120.0
"""A service that has answered once is asked again for so long: it may be restarting."""
SILENCE_S = 2.0
"""A line on standard error says that the service is gone after this."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 5.0
AGAIN_S = 1.0
PARTING_S = 5.0
"""A caller that is cancelled while it sends a job waits at most so long for the answer, which has the job's id."""
ENDED = frozenset({"done", "cancelled"})
BUSY = frozenset({429, 503})
GATEWAY = frozenset({502, 504})
"""Answers of a proxy in place of a service that is gone."""
LATE = 408
JOB, FACTS = frozenset({"id", "state"}), frozenset({"devices", "room"})
"""Keys of every answer of a service that is not a refusal."""


class RefusedJob(Exception):
    """The service will not judge this; the message says why in a sentence."""


class ServiceAnswer(NamedTuple):
    status: int
    retry_s: float
    body: Any

    @property
    def is_ours(self) -> bool:
        if not isinstance(self.body, dict):
            return False
        if self.status >= 400:
            return isinstance(self.body.get("error"), str)
        return self.body.keys() >= JOB or self.body.keys() >= FACTS


class ServiceAddress(NamedTuple):
    """`unix:PATH`, `unix:` for the usual one, or `http://HOST:PORT`."""

    socket: str | None
    url: str

    @classmethod
    def of(cls, server: str) -> "ServiceAddress":
        """Raises `ExecutorError` for anything else."""
        if server.startswith("unix:"):
            return cls(server.removeprefix("unix:") or str(default_socket()), "http://localhost")
        with suppress(ValueError):
            parts = urlsplit(server)
            if parts.scheme in ("http", "https") and parts.hostname and parts.path in ("", "/") and parts.port != 0:
                return cls(None, f"{parts.scheme}://{parts.netloc}")
        raise ExecutorError(f"--server is {server!r}; give unix:PATH or http://HOST:PORT")


def default_socket() -> Path:
    """Return where a service of this user listens, and its clients look for it."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    return (Path(runtime) / "kernelwright" if runtime else cache_root() / "service") / "socket"


def job_request(problem: Problem, source: str, overrides: dict[str, JsonValue], device: str | None) -> dict[str, Any]:
    """Return a job; without a device its source decides where it is judged. Surrogates are replaced."""
    record, text = problem.model_dump(mode="json"), source.encode(errors="replace").decode()
    return {"record": record, "source": text, "settings": overrides, "device": device}


class ServiceClient:
    """Client of one service, for any number of questions at a time."""

    def __init__(self, server: str) -> None:
        """Raises `ExecutorError` for an address that is not valid."""
        self.server = server
        self._address = ServiceAddress.of(server)
        self._token = os.environ.get(TOKEN)
        self._has_answered = False
        self._is_reported = False
        """Whether standard error says that the service is gone: once for all waiting calls."""

    async def facts(self) -> dict[str, Any]:
        """Return what the service is. Raises `ExecutorError` where there is none."""
        return dict((await self._asked("GET", "/v1/service")).body)

    async def judge(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return the job with its evidence, once it has ended. Raises `RefusedJob`; without a service `ExecutorError`.

        Cancelling the call cancels the job, also one that is being sent, if the service answers within seconds.
        """
        request = {"key": secrets.token_hex(16)} | request
        loop = asyncio.get_running_loop()
        job = (await self._asked("POST", "/v1/jobs", request)).body
        try:
            while True:
                asked_s = loop.time()
                job = (await self._asked("GET", f"/v1/jobs/{job['id']}?wait={WAIT_S}&evidence=1")).body
                if job["state"] in ENDED:
                    return dict(job)
                if loop.time() - asked_s < AGAIN_S:  # it does not wait for this one now
                    await asyncio.sleep(AGAIN_S)
        except asyncio.CancelledError:
            await self._cancel(job["id"])
            raise

    async def _cancel(self, id: str) -> None:
        with suppress(OSError, ValueError):
            await asyncio.wait_for(asyncio.shield(self._exchange("DELETE", f"/v1/jobs/{id}", None)), 1)

    async def _asked(self, method: str, path: str, body: object = None) -> ServiceAnswer:
        """Return the answer, once there is one: a service that is full or gone is asked again."""
        while True:
            answer = await self._answered(method, path, body)
            if answer.status not in BUSY:
                return self._checked(answer)
            self._has_answered |= answer.is_ours
            await asyncio.sleep(answer.retry_s)

    async def _answered(self, method: str, path: str, body: object) -> ServiceAnswer:
        """Return one answer. A service that has answered before is asked for it for `PATIENCE_S`."""
        loop, pause_s = asyncio.get_running_loop(), FIRST_PAUSE_S
        gone_s, reporting = None, None
        try:
            while True:
                try:
                    answer = await self._in_time(method, path, body)
                    if answer.status not in GATEWAY or not self._has_answered:
                        return answer
                    raise ConnectionError(f"a proxy answers {answer.status}")
                except (OSError, ValueError) as error:
                    gone_s = gone_s or loop.time()
                    if not self._has_answered or loop.time() - gone_s > PATIENCE_S:
                        self._is_reported = False
                        why = str(error) or type(error).__name__
                        raise ExecutorError(
                            f"no service answers at {self.server} ({why}); start one with `kernelwright serve`"
                        ) from None
                reporting = reporting or loop.call_later(SILENCE_S, self._report_gone)
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
        finally:
            if reporting is not None:
                reporting.cancel()

    async def _in_time(self, method: str, path: str, body: object) -> ServiceAnswer:
        """Exchange one message. Where the sender of a job is cancelled meanwhile, the job is cancelled too."""
        under_way = asyncio.ensure_future(self._exchange(method, path, body))
        try:
            async with asyncio.timeout(WAIT_S + SLACK_S):
                return await asyncio.shield(under_way)
        except asyncio.CancelledError:
            if method == "POST":
                with suppress(OSError, ValueError):
                    answer = await asyncio.wait_for(under_way, PARTING_S)
                    if answer.is_ours and answer.status < 400:
                        await self._cancel(answer.body["id"])
            raise
        finally:
            under_way.cancel()

    def _report_gone(self) -> None:
        """Report the gone service, once for all calls at the same time, until it answers again."""
        if not self._is_reported:
            self._is_reported = True
            again = f"asking again for up to {PATIENCE_S / 60:.0f} minutes"
            print(f"kernelwright: lost the service at {self.server}; {again}", file=sys.stderr, flush=True)

    def _checked(self, answer: ServiceAnswer) -> ServiceAnswer:
        """Return the answer of a service.

        Another answer comes from another server; where a service has answered before, from something between.
        """
        if answer.status == LATE:
            raise RefusedJob(
                f"the service at {self.server} did not get the complete request in time; use a faster connection"
            )
        if not answer.is_ours and self._has_answered:
            raise RefusedJob(f"the service at {self.server} answered {answer.status} without a reason; see its log")
        if not answer.is_ours or (answer.status == 404 and not self._has_answered):
            raise ExecutorError(
                f"{self.server} is not a kernelwright service (status {answer.status}); check the address"
            )
        self._has_answered, self._is_reported = True, False
        if answer.status < 400:
            return answer
        said = answer.body["error"]
        if answer.status == 401:
            raise ExecutorError(f"the service at {self.server} needs its token; set {TOKEN}")
        if answer.status == 404:
            raise ExecutorError(
                f"the service at {self.server} does not know what it is asked for ({said}); judge it again"
            )
        raise RefusedJob(said)

    async def _exchange(self, method: str, path: str, body: object) -> ServiceAnswer:
        """Send one request. Raises `OSError`, or `ValueError` for something that is not a complete answer."""
        import httpx2

        socket, url = self._address
        transport = httpx2.AsyncHTTPTransport(uds=socket, verify=url.startswith("https:"))
        headers = {"Connection": "close", "Content-Type": "application/json"}
        headers |= {"Authorization": f"Bearer {self._token}"} if self._token else {}
        data = None if body is None else json.dumps(body).encode()
        try:
            async with httpx2.AsyncClient(transport=transport, timeout=None, trust_env=False) as client:
                found = await client.request(method, url + path, content=data, headers=headers)
        except httpx2.ConnectError as error:
            raise ConnectionError(str(error)) from None
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            raise ValueError(f"the answer is not complete: {error}") from None
        is_json = found.headers.get("content-type", "").startswith("application/json")
        retry = found.headers.get("retry-after", "")
        retry_s = float(retry) if retry.isdigit() else 1.0
        return ServiceAnswer(found.status_code, retry_s, found.json() if is_json else {})


class RemoteExecutor(Executor):
    """Its devices are places in the service's queue, under the conditions of its devices."""

    builders: int
    alternates = False

    def __init__(self, settings: JudgeSettings, server: str) -> None:
        """Raises `ExecutorError` for settings that are the service's own to choose, and for a wrong address."""
        self._overrides = chosen_for_jobs(settings)
        self._place = "cuda" if settings.gpu else "cpu"
        self._client = ServiceClient(server)
        self.builders = 1

    async def open(self) -> tuple[Device, ...]:
        """Return as many devices as it takes to keep the service busy."""
        facts = await self._client.facts()
        if (differs := other_version(facts)) is not None:
            server = self._client.server
            raise ExecutorError(f"the service at {server} is another version ({differs}); start this one there")
        devices = [Device.model_validate(one) for one in facts["devices"].get(self._place, ())]
        if not devices:
            there = ", ".join(sorted(facts["devices"])) or "none"
            raise ExecutorError(f"the service at {self._client.server} has no {self._place}; it has: {there}")
        first, self.builders = devices[0], 2 * int(facts["room"][self._place])
        asked = json.dumps(json.loads(first.conditions.settings) | self._overrides, sort_keys=True)
        conditions = first.conditions.model_copy(update={"settings": asked})
        return tuple(
            first.model_copy(update={"node": self._client.server, "ordinal": number, "conditions": conditions})
            for number in range(self.builders)
        )

    async def build(self, work: Work) -> Answer | Product:
        return Product("")

    async def run(self, stage: Stage, work: Work, product: Product, device: Device) -> Answer:
        try:
            request = job_request(work.problem, work.candidate.source, self._overrides | work.overrides, self._place)
            own = {"stage": stage, "fresh": work.fresh, "effort": work.effort, "beat": work.best_speedup}
            job = await self._client.judge(request | own)
        except RefusedJob as error:
            return Answer(error=JobError(message=str(error)))
        return answer_of(job)


def answer_of(job: dict[str, Any]) -> Answer:
    """Return a worker's answer from a job that has ended."""
    if job["verdict"] is None:
        return Answer(error=JobError.model_validate(job["error"] or {"message": "the job was cancelled"}))
    try:
        return Answer(verdict=VERDICT.validate_python(job["verdict"]))
    except ValidationError:
        return Answer(error=JobError(message="the service's verdict cannot be read; ask one of this version"))
