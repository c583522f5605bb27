"""Open asks sent to a batch service and fetched from it: OpenAI's, or another server with `/files` and `/batches`.

What was sent is noted in the run's folder, and found again on the server by its metadata where the note was lost, so
that a process that is killed at any point sends nothing twice.
"""

import hashlib
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from pydantic import ValidationError

from kernelwright.agent.log.run_log import RunLog
from kernelwright.agent.providers.options import OpenAISettings
from kernelwright.agent.providers.provider import ProviderError
from kernelwright.agent.providers.servers.batch_file import (
    ENDPOINT,
    Imported,
    batch_line,
    import_answers,
    open_requests,
)
from kernelwright.agent.providers.servers.client import OpenAIProvider
from kernelwright.problems.record.base import Record
from kernelwright.sandbox.machine.atomic import write_atomically

if TYPE_CHECKING:
    import openai

NOTE = "batches.json"
MARK = "kernelwright"
"""The key of our entry in a batch's metadata."""
MOST_LINES, MOST_BYTES = 50_000, 190 << 20
"""Of one file; the service allows 200 MB."""
ENDED = {"completed", "failed", "expired", "cancelled"}
LOOKED_BACK = 100
"""Batches on the server among which one that was sent before is looked for."""


class Sent(Record):
    """A batch that was sent and whose answers were not yet taken."""

    id: str
    digest: str
    """sha256 of the file that was sent."""
    requests: int


class SentBatches(Record):
    """What is known in the run's folder."""

    sent: tuple[Sent, ...] = ()
    taken: tuple[str, ...] = ()
    """Ids of batches whose answers were taken: what failed in them is sent again."""


class BatchStatus(NamedTuple):
    """Where a batch stands on the server."""

    id: str
    status: str
    done: int
    failed: int
    requests: int
    why: str = ""
    """Why the service refused it as a whole, in its words."""

    @property
    def ended(self) -> bool:
        """Whether nothing more will come of it."""
        return self.status in ENDED


class BatchService:
    """The batches of one run on one server."""

    def __init__(self, log: RunLog, settings: OpenAISettings, environment: Mapping[str, str] = os.environ) -> None:
        self._log = log
        self._server = OpenAIProvider(settings, environment)
        self._note = log.folder / NOTE

    @property
    def note(self) -> SentBatches:
        """What is under way; `ProviderError` where the note cannot be read."""
        try:
            return SentBatches.model_validate_json(self._note.read_bytes())
        except FileNotFoundError:
            return SentBatches()
        except (OSError, ValidationError) as error:
            raise ProviderError(
                f"{self._note} cannot be read ({type(error).__name__}); restore or delete it"
            ) from error

    def send(self) -> tuple[Sent, ...]:
        """Send every open ask; what is under way. `ProviderError` where batches are under way, or nothing is open."""
        note = self.note
        if note.sent:
            raise ProviderError(f"a batch of {self._log.folder} is under way; run `kernelwright batch fetch` first")
        lines = {one.request.digest: batch_line(one.request) for one in open_requests(self._log)}
        if not lines:
            raise ProviderError(f"no ask of {self._log.folder} waits for an answer; go on with `kernelwright resume`")
        with self._client() as client:
            known = {
                (batch.metadata or {}).get(MARK): batch.id
                for batch in client.batches.list(limit=LOOKED_BACK).data  # iterating would turn all pages
                if batch.id not in note.taken
            }
            sent = tuple(self._send(client, part, known) for part in _files(lines.values()))
        self._write(SentBatches(sent=sent, taken=note.taken))
        return sent

    def progress(self) -> list[BatchStatus]:
        """Where each batch under way stands."""
        with self._client() as client:
            return [_progress(client, one) for one in self.note.sent]

    def wait(self, every_s: float, told: Callable[[list[BatchStatus]], None]) -> None:
        """Ask how they stand until all have ended; `told` hears each answer."""
        while True:
            found = self.progress()
            told(found)
            if all(one.ended for one in found):
                return
            time.sleep(every_s)

    def fetch(self) -> Imported:
        """Take the answers of all batches that have ended into the run; those of others stay under way."""
        note = self.note
        left: list[Sent] = []
        with self._client() as client, tempfile.TemporaryDirectory() as scratch:
            paths: list[Path] = []
            for one in note.sent:
                batch = client.batches.retrieve(one.id)
                if batch.status not in ENDED:
                    left.append(one)
                    continue
                wanted = [name for name in (batch.output_file_id, batch.error_file_id) if name]
                paths += [_download(client, name, Path(scratch)) for name in wanted]
            found = import_answers(self._log, _lines(paths))
        taken = (*note.taken, *(one.id for one in note.sent if one not in left))
        self._write(SentBatches(sent=tuple(left), taken=taken))
        return found

    def _send(self, client: "openai.OpenAI", part: bytes, known: Mapping[str | None, str]) -> Sent:
        digest = hashlib.sha256(part).hexdigest()
        mark = f"{self._log.header.run_id} {digest}"
        if mark not in known:
            file = client.files.create(file=("requests.jsonl", part), purpose="batch")
            batch = client.batches.create(
                input_file_id=file.id, endpoint=ENDPOINT, completion_window="24h", metadata={MARK: mark}
            )
            return Sent(id=batch.id, digest=digest, requests=part.count(b"\n"))
        return Sent(id=known[mark], digest=digest, requests=part.count(b"\n"))

    def _write(self, note: SentBatches) -> None:
        write_atomically(self._note, note.model_dump_json())

    @contextmanager
    def _client(self) -> "Iterator[openai.OpenAI]":
        with self._server.told("files or batches"), self._server.plain_client() as client:
            yield client


def _files(lines: Iterable[str]) -> Iterator[bytes]:
    """The lines in as few files as the service allows."""
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


def _download(client: "openai.OpenAI", name: str, folder: Path) -> Path:
    """As a file: the answers of a whole batch may be larger than memory."""
    path = folder / hashlib.sha256(name.encode()).hexdigest()
    with client.files.with_streaming_response.content(name) as answer:
        answer.stream_to_file(path)
    return path


def _lines(paths: Iterable[Path]) -> Iterator[str]:
    for path in paths:
        with open(path, encoding="utf-8", errors="replace", newline="\n") as file:
            yield from file
