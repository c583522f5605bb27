"""The rendered records: `Section` and `Prompt`."""

import hashlib
import math
from collections.abc import Iterable
from functools import cached_property

from kernelwright.problems.languages import Target
from kernelwright.problems.record.base import Record
from kernelwright.prompts.brief import Role

BYTES_PER_TOKEN = 3.5
"""Between prose, at about 4.3 bytes a token, and code, at about 3."""


def estimated_tokens(text: str) -> int:
    """An estimate and no more: UTF-8 bytes over 3.5, rounded up. Real counts depend on the model's own tokenizer."""
    return math.ceil(len(text.encode()) / BYTES_PER_TOKEN)


class Section(Record):
    """One named part of a prompt."""

    name: str
    text: str
    stable: bool
    """Whether it depends only on problem, target and versions: the same on every machine and in every attempt."""

    @cached_property
    def digest(self) -> str:
        """sha256 of the text, as 64 hex digits."""
        return hashlib.sha256(self.text.encode()).hexdigest()

    @property
    def tokens(self) -> int:
        return estimated_tokens(self.text)


class Prompt(Record):
    """What the model reads. Stable sections come first, so that a provider's prefix cache can serve them again."""

    role: Role
    target: Target
    sections: tuple[Section, ...]

    @cached_property
    def text(self) -> str:
        return _joined(self.sections)

    @cached_property
    def digest(self) -> str:
        """sha256 of `text`, as 64 hex digits."""
        return hashlib.sha256(self.text.encode()).hexdigest()

    @cached_property
    def stable_digest(self) -> str:
        """sha256 over the stable sections, as 64 hex digits: equal for all attempts at one problem on any machine."""
        stable = _joined(section for section in self.sections if section.stable)
        return hashlib.sha256(stable.encode()).hexdigest()

    @property
    def tokens(self) -> int:
        return sum(section.tokens for section in self.sections)


def _joined(sections: Iterable[Section]) -> str:
    return "\n\n".join(section.text for section in sections) + "\n"
