"""OpenAI batch files: the asks of a run that wait for an answer, as lines to send; and the answers back into its log.

Lines are joined by `custom_id`, the request's digest, so their order and number do not matter.
"""

import json
from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

from kernelwright.agent.log.events import Replied, RepliedAgain
from kernelwright.agent.log.journal import Journal
from kernelwright.agent.log.records import Attempt, Reply, Request
from kernelwright.agent.log.run_log import RunLog
from kernelwright.agent.log.view import fold
from kernelwright.agent.providers.servers.chat import read_reply
from kernelwright.problems.record.base import Record

ENDPOINT: Final = "/v1/chat/completions"
PROVIDER = "batch"
"""Who is said to have answered."""


class OpenRequest(NamedTuple):
    """A request of a run that has no answer yet."""

    problem: str
    attempt: int
    request: Request
    again: bool
    """Whether it asks to go on with a reply that was cut off."""


class Imported(Record):
    """What became of the lines of an answer file."""

    answered: int
    failed: dict[str, str]
    """By `custom_id`, or by `line N` where a line has none that can be read: why it gave no answer."""
    unknown: tuple[str, ...]
    """Ids that the run does not wait for, as when a file is imported twice."""
    missing: tuple[str, ...]
    """Ids that the run still waits for."""


def open_requests(log: RunLog) -> Iterator[OpenRequest]:
    """All requests of the run that wait for an answer, by problem and attempt."""
    for name in log.header.problems:
        for attempt in fold(name, log.events(name)).attempts:
            if attempt.ask.role != "tune" and (found := _open(log, name, attempt)):
                yield found


def batch_line(request: Request) -> str:
    """The request as one line of a batch file, without the line's end."""
    options = {"temperature": request.temperature, "max_completion_tokens": request.max_tokens}
    given = {name: value for name, value in options.items() if value is not None}
    body = {"model": request.model, "messages": [{"role": "user", "content": request.prompt}], **given}
    return json.dumps({"custom_id": request.digest, "method": "POST", "url": ENDPOINT, "body": body})


def import_answers(log: RunLog, lines: Iterable[str]) -> Imported:
    """Log the answers to what the run waits for. Importing again changes nothing. One writer at a time."""
    waiting: dict[str, list[OpenRequest]] = {}
    for one in open_requests(log):
        waiting.setdefault(one.request.digest, []).append(one)
    journals = {name: Journal(name, log, lambda event: None) for name in log.header.problems}
    answered = 0
    failed: dict[str, str] = {}
    unknown: list[str] = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        custom_id, found = _read(line)
        if custom_id is None:
            failed[f"line {number}"] = str(found)
        elif custom_id not in waiting:
            unknown.append(custom_id)
        elif isinstance(found, str):
            failed[custom_id] = found
        else:
            for one in waiting.pop(custom_id):
                _log(journals[one.problem], one, found)
                answered += 1
            failed.pop(custom_id, None)
    return Imported(answered=answered, failed=failed, unknown=tuple(unknown), missing=tuple(waiting))


def _open(log: RunLog, problem: str, attempt: Attempt) -> OpenRequest | None:
    again = attempt.follow_up
    if attempt.reply_digest is None:
        text = log.prompt(attempt.prompt).text
    elif again is not None and again.reply_digest is None and not attempt.finished:
        text = log.text(again.prompt_digest)
    else:
        return None
    return OpenRequest(problem, attempt.number, attempt.request(text), attempt.reply_digest is not None)


def _read(line: str) -> tuple[str | None, Reply | str]:
    """The line's id, where it has one, and its reply or why there is none."""
    try:
        answer = json.loads(line)
    except ValueError:
        return None, "is no JSON"
    custom_id = answer.get("custom_id") if isinstance(answer, dict) else None
    if not isinstance(custom_id, str):
        return None, "has no custom_id"
    return custom_id, _reply(answer)


def _reply(answer: dict[str, Any]) -> Reply | str:
    response = answer.get("response")
    if not isinstance(response, dict):
        return f"failed: {_said(answer.get('error'))}"
    body, status = response.get("body"), response.get("status_code", 200)
    if status != 200 or not isinstance(body, dict):
        return f"failed with status {status}: {_said(body)}"
    reply = read_reply(body, asked_model="unknown", request_id=response.get("request_id"), latency_s=0.0)
    if reply is None:
        return "holds no chat completion"
    return Reply.model_validate(reply.model_dump() | {"provider": PROVIDER, "latency_s": None})


def _said(error: Any) -> str:
    inner = error.get("error", error) if isinstance(error, dict) else error
    words = inner.get("message") if isinstance(inner, dict) else inner
    return str(words or "no reason was given")


def _log(journal: Journal, one: OpenRequest, reply: Reply) -> None:
    kind = RepliedAgain if one.again else Replied
    event = kind(problem=one.problem, attempt=one.attempt, reply_digest=reply.digest, reply=reply.facts)
    journal.write(event, blobs=[reply.model_dump_json()])
