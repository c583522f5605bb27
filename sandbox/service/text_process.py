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
from typing import Any

from pydantic import TypeAdapter

from kernelwright.sandbox.pool.local import Ended, LineProcess
from kernelwright.sandbox.service.jobs import NewJob, PlaceName
from kernelwright.sandbox.service.reading import RequestError, read_request
from kernelwright.sandbox.verdict.report import report
from kernelwright.sandbox.verdict.verdicts import Verdict

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
    """What the process says to one line."""
    if not {"read", "report"} & set(question):
        return {}
    if "report" in question:
        return {"report": report(VERDICT.validate_python(question["report"]))}
    try:
        return {"job": read_request(question["read"], question["places"]).model_dump(mode="json")}
    except RequestError as error:
        return {"refused": str(error)}


def main() -> None:
    """Answer until the input ends."""
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
