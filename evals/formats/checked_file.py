"""A file of checked problems, one JSON object a line: what is there is not checked again."""

from collections.abc import Iterable
from pathlib import Path
from typing import Self, TextIO

from pydantic import ValidationError

from kernelwright.evals.formats.checking import TRIED_AGAIN, Checked
from kernelwright.problems import ProblemError
from kernelwright.problems.formats.reading import json_lines


class CheckedFile:
    """Lines are appended as they come, so that a kill costs one. Use it as a context; None is no file at all."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._file: TextIO | None = None
        self._known: dict[tuple[str | None, ...], Checked] = {}

    def __enter__(self) -> Self:
        """Raises `ProblemError` for a file that holds something else, and where it can not be written."""
        if self._path is None:
            return self
        try:
            text = self._path.read_text(encoding="utf-8", errors="replace") if self._path.exists() else ""
            lines = list(_parsed(json_lines(text)))
            if text.strip() and not lines:
                raise ProblemError(f"{self._path} holds no lines of `problems check`; choose another --out")
            self._file = self._path.open("a", encoding="utf-8")
        except OSError as error:
            raise ProblemError(f"cannot write {self._path} ({error.strerror}); choose another --out") from error
        if text and not text.endswith("\n"):  # a kill has cut the last line off
            self._file.write("\n")
        self._known = {line.key: line for line in lines}
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()

    def known(self, begun: Checked) -> Checked | None:
        """The line that stands for this one; None where it has to be checked, be it again."""
        found = self._known.get(begun.key)
        return None if found is None or found.status in TRIED_AGAIN else found

    def add(self, line: Checked) -> None:
        """Keep a line, unless the file says the same already."""
        if self._file is None or self._known.get(line.key) == line:
            return
        self._known[line.key] = line
        self._file.write(line.model_dump_json() + "\n")
        self._file.flush()


def _parsed(lines: Iterable[str]) -> Iterable[Checked]:
    for line in lines:
        try:
            yield Checked.model_validate_json(line)
        except ValidationError:
            continue
