"""`batch`: requests stay open in the run's log until they are sent together as a batch.

They are exported as OpenAI batch files, whose lines have the request's digest as `custom_id`; or sent to a service,
OpenAI's or another with `/files` and `/batches`. A note of batches that were sent is in the run's folder. Where it was
lost, they are found on the server by their metadata, so that a process killed at any point sends nothing twice.
"""

import hashlib
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pydantic import ValidationError

from kernelwright.agent.config import ProviderOptions, ServerOptions
from kernelwright.agent.log.records import Ask, Reply, Request
from kernelwright.agent.log.store import Journal, RunLog
from kernelwright.agent.log.view import fold
from kernelwright.agent.providers import AnswerPending, Provider, ProviderError
from kernelwright.agent.providers.server import WIRES, OpenAIProvider
from kernelwright.problems.problem import Record
from kernelwright.prompts import Prompt
from kernelwright.sandbox.storage import write_atomically

if TYPE_CHECKING:
    import openai

ENDPOINT: Final = "/v1/chat/completions"
PROVIDER = "batch"


class OpenRequest(NamedTuple):
    problem: str
    attempt: int
    request: Request
    again: bool  # it asks to continue a reply that was cut off


class Imported(Record):
    answered: int
    failed: dict[str, str]  # reasons for no answer, by `custom_id`, or by `line N` where a line has no readable id
    unknown: tuple[str, ...]  # ids that the run does not wait for, as after a second import
    missing: tuple[str, ...]


def open_requests(log: RunLog) -> Iterator[OpenRequest]:
    for name in log.header.problems:
        for attempt in fold(name, log.events(name)).attempts:
            again = attempt.follow_up
            if attempt.reply_digest is None and attempt.ask.role != "tune":
                request = attempt.request(log.prompt(attempt.prompt).text)
                yield OpenRequest(name, attempt.number, request, again=False)
            elif again is not None and again.reply_digest is None and not attempt.finished:
                request = attempt.request(log.text(again.prompt_digest))
                yield OpenRequest(name, attempt.number, request, again=True)


def batch_line(request: Request) -> str:
    """Write the request as one line of a batch file, without its end."""
    body = WIRES["chat"].arguments(request, is_own=True)
    return json.dumps({"custom_id": request.digest, "method": "POST", "url": ENDPOINT, "body": body})


def import_answers(log: RunLog, lines: Iterable[str]) -> Imported:
    """Log the answers that the run waits for. Importing again changes nothing. One writer at a time."""
    waiting: dict[str, list[OpenRequest]] = {}
    for one in open_requests(log):
        waiting.setdefault(one.request.digest, []).append(one)
    journals = {name: Journal(name, log) for name in log.header.problems}
    answered = 0
    failed: dict[str, str] = {}
    unknown: list[str] = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            answer = json.loads(line)
        except ValueError:
            failed[f"line {number}"] = "is no JSON"
            continue
        custom_id = answer.get("custom_id") if isinstance(answer, dict) else None
        if not isinstance(custom_id, str):
            failed[f"line {number}"] = "has no custom_id"
        elif custom_id not in waiting:
            unknown.append(custom_id)
        elif isinstance(found := _reply(answer), str):
            failed[custom_id] = found
        else:
            for one in waiting.pop(custom_id):
                journals[one.problem].write_reply(one.attempt, found, one.again)
                answered += 1
            failed.pop(custom_id, None)
    return Imported(answered=answered, failed=failed, unknown=tuple(unknown), missing=tuple(waiting))


def _reply(answer: dict[str, Any]) -> Reply | str:
    def said(error: Any) -> str:
        inner = error.get("error", error) if isinstance(error, dict) else error
        words = inner.get("message") if isinstance(inner, dict) else inner
        return str(words or "no reason was given")

    response = answer.get("response")
    if not isinstance(response, dict):
        return f"failed: {said(answer.get('error'))}"
    body, status = response.get("body"), response.get("status_code", 200)
    if status != 200 or not isinstance(body, dict):
        return f"failed with status {status}: {said(body)}"
    reply = WIRES["chat"].read(body, asked_model="unknown")
    if not isinstance(reply, Reply):
        return "holds no chat completion"
    own = {"provider": PROVIDER, "provider_request_id": response.get("request_id") or reply.provider_request_id}
    return Reply.model_validate(reply.model_dump() | own)


NOTE = "batches.json"
WANTED = "files or batches"
MARK = "kernelwright"  # the key of our entry in a batch's metadata
MOST_LINES, MOST_BYTES = 50_000, 190 << 20  # of one file; the service allows 200 MB
ENDED = {"completed", "failed", "expired", "cancelled"}
LOOKED_BACK = 100  # batches on the server among which one that was sent before is looked for


class Sent(Record):
    id: str
    digest: str  # sha256 of the file that was sent
    requests: int


class SentBatches(Record):
    sent: tuple[Sent, ...] = ()
    taken: tuple[str, ...] = ()  # ids of batches whose answers were imported: their failures are sent again


class BatchStatus(NamedTuple):
    id: str
    status: str
    done: int
    failed: int
    requests: int
    why: str = ""

    @property
    def ended(self) -> bool:
        return self.status in ENDED


class BatchService:
    def __init__(self, log: RunLog, settings: ServerOptions, environment: Mapping[str, str] = os.environ) -> None:
        self._log = log
        self._server = OpenAIProvider(settings, environment)
        self._note = log.folder / NOTE

    @property
    def note(self) -> SentBatches:
        """The batches under way. Raises `ProviderError` where the note cannot be read."""
        try:
            return SentBatches.model_validate_json(self._note.read_bytes())
        except FileNotFoundError:
            return SentBatches()
        except (OSError, ValidationError) as error:
            why = f"{self._note} cannot be read ({type(error).__name__})"
            raise ProviderError(f"{why}; restore or delete it") from error

    def send(self) -> tuple[Sent, ...]:
        """Send every open ask. Raises `ProviderError` where batches are under way, or nothing is open."""
        note = self.note
        if note.sent:
            raise ProviderError(f"a batch of {self._log.folder} is under way; run `kernelwright batch fetch` first")
        lines = {one.request.digest: batch_line(one.request) for one in open_requests(self._log)}
        if not lines:
            raise ProviderError(f"no ask of {self._log.folder} waits for an answer; go on with `kernelwright resume`")
        with self._server.plain_client(WANTED) as client:
            known = {
                (batch.metadata or {}).get(MARK): batch.id
                for batch in client.batches.list(limit=LOOKED_BACK).data  # iterating would turn all pages
                if batch.id not in note.taken
            }
            sent = tuple(self._send(client, part, known) for part in _files(lines.values()))
        self._write(SentBatches(sent=sent, taken=note.taken))
        return sent

    def progress(self) -> list[BatchStatus]:
        with self._server.plain_client(WANTED) as client:
            return [_progress(client, one) for one in self.note.sent]

    def wait(self, every_s: float, report: Callable[[list[BatchStatus]], None]) -> None:
        """Poll until all have ended; `report` receives each answer."""
        while True:
            found = self.progress()
            report(found)
            if all(one.ended for one in found):
                return
            time.sleep(every_s)

    def fetch(self) -> Imported:
        """Import the answers of all batches that have ended; others stay under way."""
        note = self.note
        left: list[Sent] = []
        with self._server.plain_client(WANTED) as client, tempfile.TemporaryDirectory() as scratch:
            paths: list[Path] = []
            for one in note.sent:
                batch = client.batches.retrieve(one.id)
                if batch.status not in ENDED:
                    left.append(one)
                    continue
                for name in filter(None, (batch.output_file_id, batch.error_file_id)):
                    paths.append(Path(scratch) / hashlib.sha256(name.encode()).hexdigest())
                    with client.files.with_streaming_response.content(name) as answer:
                        answer.stream_to_file(paths[-1])
            found = import_answers(self._log, _lines(paths))
        taken = (*note.taken, *(one.id for one in note.sent if one not in left))
        self._write(SentBatches(sent=tuple(left), taken=taken))
        return found

    def _send(self, client: "openai.OpenAI", part: bytes, known: Mapping[str | None, str]) -> Sent:
        digest = hashlib.sha256(part).hexdigest()
        mark = f"{self._log.header.run_id} {digest}"
        id = known.get(mark)
        if id is None:
            file = client.files.create(file=("requests.jsonl", part), purpose="batch").id
            how: Any = {"endpoint": ENDPOINT, "completion_window": "24h", "metadata": {MARK: mark}}
            id = client.batches.create(input_file_id=file, **how).id
        return Sent(id=id, digest=digest, requests=part.count(b"\n"))

    def _write(self, note: SentBatches) -> None:
        write_atomically(self._note, note.model_dump_json())


def _files(lines: Iterable[str]) -> Iterator[bytes]:
    part, count = bytearray(), 0
    for line in lines:
        data = f"{line}\n".encode()
        if part and (count == MOST_LINES or len(part) + len(data) > MOST_BYTES):
            yield bytes(part)
            part, count = bytearray(), 0
        part += data
        count += 1
    yield bytes(part)


def _progress(client: "openai.OpenAI", one: Sent) -> BatchStatus:
    batch = client.batches.retrieve(one.id)
    counts = batch.request_counts
    done, failed = (counts.completed, counts.failed) if counts else (0, 0)
    faults = (batch.errors.data or []) if batch.errors else []
    why = "; ".join(fault.message for fault in faults if fault.message)
    return BatchStatus(id=one.id, status=batch.status, done=done, failed=failed, requests=one.requests, why=why)


def _lines(paths: Iterable[Path]) -> Iterator[str]:
    for path in paths:
        with open(path, encoding="utf-8", errors="replace", newline="\n") as file:
            yield from file


class BatchProvider:
    """Answers nothing; `import_answers` logs the answers from elsewhere, under the same name."""

    name = PROVIDER

    async def complete(self, request: Request, ask: Ask, prompt: Prompt) -> Reply:
        steps = "`kernelwright batch export`, send the file, `kernelwright batch import`, then `kernelwright resume`"
        raise AnswerPending(f"the asks wait for a batch: {steps}")


def provider(options: ProviderOptions, run: RunLog) -> Provider:
    return BatchProvider()
