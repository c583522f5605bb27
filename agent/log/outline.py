"""`PromptOutline`: a prompt's sections without its text, which the run's log holds once."""

from typing import Annotated, Self

from pydantic import Field

from kernelwright.problems.record.base import Record
from kernelwright.prompts import Prompt, Role, Section, Target

Offset = Annotated[int, Field(ge=0)]


class SectionSpan(Record):
    """A section as a stretch of the prompt's text."""

    name: str
    stable: bool
    start: Offset
    end: Offset
    """Offsets in characters; `end` is behind the last one."""


class PromptOutline(Record):
    """A prompt without its text, which the run's log holds under `digest`."""

    role: Role
    target: Target
    digest: str
    stable_digest: str
    sections: tuple[SectionSpan, ...]

    @classmethod
    def of(cls, prompt: Prompt) -> Self:
        """The outline of `prompt`."""
        spans = []
        at = 0
        for section in prompt.sections:
            at = prompt.text.index(section.text, at)
            end = at + len(section.text)
            spans.append(SectionSpan(name=section.name, stable=section.stable, start=at, end=end))
            at = end
        return cls(
            role=prompt.role,
            target=prompt.target,
            digest=prompt.digest,
            stable_digest=prompt.stable_digest,
            sections=tuple(spans),
        )

    def filled(self, text: str) -> Prompt:
        """The prompt again, from its text."""
        sections = (
            Section(name=span.name, text=text[span.start : span.end], stable=span.stable) for span in self.sections
        )
        return Prompt(role=self.role, target=self.target, sections=tuple(sections))
