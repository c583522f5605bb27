"""A process beside the service that looks into texts of clients: `python -m kernelwright.sandbox.service.text_process`.

A source can be written so that parsing it takes all memory, minutes, or the parser's life. Then it is this process that
ends, and the request is refused; whoever asked at the same time is asked again in a new one.
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

from kernelwright.sandbox.pool.workers.line_process import Ended, LineProcess
from kernelwright.sandbox.service.jobs import NewJob, PlaceName
from kernelwright.sandbox.service.reading import RequestError, read_request
from kernelwright.sandbox.verdict.report import report
from kernelwright.sandbox.verdict.verdicts import Verdict

MODULE = "kernelwright.sandbox.service.text_process"
MEMORY_BYTES = 2 * 2**30
ANSWER_S = 20.0
"""From the question on, those before it among them."""
TRIES = 2
VERDICT: TypeAdapter[Verdict] = TypeAdapter(Verdict)


class TextProcess:
    """Reads requests and derives reports; use it from one event loop, and close it."""

    def __init__(self) -> None:
        self._process: LineProcess | None = None
        self._starting = asyncio.Lock()

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
        for left in reversed(range(TRIES)):
            process = await self._started()
            try:
                return await asyncio.wait_for(process.ask(question), ANSWER_S)
            except (Ended, TimeoutError):
                process.lose("no answer in time")
                if not left:
                    raise
        raise AssertionError("the last try returns or raises")

    async def _started(self) -> LineProcess:
        async with self._starting:
            if self._process is not None and self._process.has_ended:
                await self.close()
            if self._process is None:
                self._process = await LineProcess.start(MODULE)
            return self._process

    async def close(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        if process is not None:
            await process.close()


def answer(question: dict[str, Any]) -> dict[str, Any]:
    """What the process says to one line."""
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
