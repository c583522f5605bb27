"""A run as one HTML file that needs nothing else: no server, no network, no other file."""

import base64
import gzip
import hashlib
import json
from collections import Counter
from pathlib import Path
from typing import Any

from kernelwright.agent.log.run_log import RunLog
from kernelwright.evals.inspector.model import Data, RunModel
from kernelwright.evals.inspector.page import page

CHUNK = 25
"""Attempts that are unpacked together."""
LARGEST_BYTES = 5_000_000
LIMITS = (200_000, 60_000, 20_000, 8_000, 4_000)
"""Characters of a text that are kept; the first limit under which the file is small enough is taken."""
TEXTS = ("source", "reply", "reasoning")
SHORTEST_SHARED = 60
"""Characters below which a text is not worth a name of its own."""


def export(folder: Path, out: Path) -> int:
    """Write the run in `folder` to `out`; the bytes written. Raises `RunLogError` or `OSError`."""
    with RunLog.open(folder) as log:
        text = exported(RunModel(log))
    data = text.encode()
    out.write_bytes(data)
    return len(data)


def exported(model: RunModel) -> str:
    """The file's text. Long texts are cut where the whole would become too large, and say so."""
    details = {
        (name, attempt.number): model.detail(name, attempt.number)
        for name, view in model.views.items()
        for attempt in view.attempts
    }
    for limit in LIMITS:
        text = page(f"kernelwright: {model.log.header.run_id}", "file", _packed(model, details, limit))
        if len(text) <= LARGEST_BYTES:
            break
    return text


def _packed(model: RunModel, details: dict[tuple[str, int], Data], limit: int) -> dict[str, str]:
    index = model.index()
    texts = _Texts(details, limit)
    chunks: dict[str, Data] = {}
    for problem in index["problems"]:
        for summary in problem["attempts"]:
            number = summary["n"]
            summary["chunk"] = name = f"chunk-{index['problems'].index(problem)}-{(number - 1) // CHUNK}"
            own = chunks.setdefault(name, {"attempts": {}, "texts": {}})
            own["attempts"][f"{problem['name']}/{number}"] = texts.detail(problem["name"], number, own["texts"])
    references = {name: problem.source for name, problem in model.problems.items()}
    whole = {"index": index, "shared": {"texts": texts.shared, "references": references}} | chunks
    return {name: _pack(value) for name, value in whole.items()}


def _pack(value: Any) -> str:
    # The level that halves the time of the best one, for a few per cent more bytes; no date, so that the same run gives
    # the same file.
    data = gzip.compress(json.dumps(value, separators=(",", ":")).encode(), compresslevel=8, mtime=0)
    return base64.b64encode(data).decode()


class _Texts:
    """Texts stored once: each is a list of pieces, and a piece that is stored under a name is [name].

    A reply quotes its candidate's source, and a prompt its parent's; sections are the same in many prompts.
    """

    def __init__(self, details: dict[tuple[str, int], Data], limit: int) -> None:
        self._details = details
        self._limit = limit
        counts = Counter(section["text"] for detail in details.values() for section in detail["sections"])
        self.shared = {_name(text): self._cut(text) for text, count in counts.items() if count > 1}
        for number, detail in details.items():
            for child in self._children(number, detail):
                self.shared[_name(child)] = self._cut(child)

    def _children(self, number: tuple[str, int], detail: Data) -> list[str]:
        """The parent's source, where the attempt's prompt quotes it."""
        source = self._parent_source(number, detail)
        quotes = source and any(source in section["text"] for section in detail["sections"] if not section["stable"])
        return [source] if source and quotes else []

    def _parent_source(self, number: tuple[str, int], detail: Data) -> str | None:
        parent = self._details.get((number[0], detail["parent"] or 0))
        return parent["source"] if parent else None

    def detail(self, problem: str, number: int, own: dict[str, str]) -> Data:
        detail = dict(self._details[problem, number])
        quoted = [detail["source"], self._parent_source((problem, number), detail)]
        known = [text for text in quoted if text and len(text) >= SHORTEST_SHARED]
        if detail["source"]:
            own.setdefault(_name(detail["source"]), self._cut(detail["source"]))
        for name in TEXTS:
            detail[name] = None if detail[name] is None else self._pieces(detail[name], known, own)
        detail["sections"] = [one | {"text": self._pieces(one["text"], known, own)} for one in detail["sections"]]
        for name in ("log", "reason"):
            detail[name] = None if detail[name] is None else self._cut(detail[name])
        return detail

    def _pieces(self, text: str, known: list[str], own: dict[str, str]) -> list[Any]:
        if _name(text) in self.shared or _name(text) in own:
            return [[_name(text)]]
        for quoted in known:
            before, found, after = text.partition(quoted)
            if found and (_name(quoted) in self.shared or _name(quoted) in own):
                return [self._cut(before), [_name(quoted)], self._cut(after)]
        return [self._cut(text)]

    def _cut(self, text: str) -> str:
        if len(text) <= self._limit:
            return text
        return (
            f"{text[: self._limit]}\n[... {len(text) - self._limit} more characters are in the run, not in this file]"
        )


def _name(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]
