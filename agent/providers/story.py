"""A story: recorded answers to one problem for one target, as they lie in a catalog folder.

`recorded/TARGET/` holds `story.toml` and one Markdown file for each reply; `recorded/TARGET-DTYPE/` the same for the
problem cast to another dtype, such as `cuda-bfloat16`.
"""

from pathlib import Path
from typing import Self

from pydantic import Field, model_validator

from kernelwright import problems
from kernelwright.agent.providers.provider import ProviderError
from kernelwright.problems.record.base import Record, read_table
from kernelwright.prompts import Role, Target
from kernelwright.prompts.targets import TARGETS

CATALOG = Path(problems.__file__).parent / "catalog"
STORY = "story.toml"


class RecordedAnswer(Record):
    """One recorded answer."""

    file: str = Field(pattern=r"^[\w-]+\.md$")
    """Name of the reply's file in the story's folder, such as `02-repair.md`."""
    role: Role
    parent: int | None = None
    """Number of the entry that this one follows; None for a first draft."""
    prompt_digest: str
    """Of the prompt that this was written in answer to; see `Prompt.digest`."""
    stable_digest: str
    finish_reason: str = "stop"


class Story(Record):
    """The whole of `story.toml`. Entries are numbered from 1 in their order."""

    label: str = Field(min_length=1)
    """Who wrote the answers, and in answer to what: shown wherever they are used."""
    entries: tuple[RecordedAnswer, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _parents_come_first(self) -> Self:
        for number, entry in enumerate(self.entries, start=1):
            if entry.parent is not None and not 1 <= entry.parent < number:
                raise ValueError(f"{entry.file} follows entry {entry.parent}, which is no earlier one")
        if len({entry.file for entry in self.entries}) < len(self.entries):
            raise ValueError("two entries name the same file")
        return self

    @property
    def drafts(self) -> int:
        """How many answers start from the reference: what `SearchConfig.drafts` should be to replay the story."""
        return sum(1 for entry in self.entries if entry.role == "propose")


def stories(folder: str | None) -> Path:
    """Where stories lie: the folder that was asked for, else the catalog that ships."""
    return CATALOG if folder is None else Path(folder)


def story_folder(problem: str, target: Target, catalog: Path = CATALOG, dtype: str | None = None) -> Path:
    """Where the recorded answers for the problem and target are, if there are any; `dtype`: what it is cast to."""
    return catalog / problem / "recorded" / (target if dtype is None else f"{target}-{dtype}")


def recorded_targets(problem: str, catalog: Path = CATALOG, dtype: str | None = None) -> tuple[Target, ...]:
    """The targets that the problem of that name has recorded answers for; none for a problem from elsewhere."""
    return tuple(target for target in TARGETS if (story_folder(problem, target, catalog, dtype) / STORY).is_file())


def read_story(problem: str, target: Target, catalog: Path = CATALOG, dtype: str | None = None) -> Story:
    """The story of a problem for a target; `ProviderError` where there is none or it is malformed."""
    path = story_folder(problem, target, catalog, dtype) / STORY
    if not path.is_file():
        there = ", ".join(recorded_targets(problem, catalog, dtype)) or "none"
        cast = f" in {dtype}" if dtype else ""
        raise ProviderError(
            f"there are no recorded answers for problem {problem!r}{cast} and target {target!r} (targets that have "
            f"some: {there}); name a model to ask"
        )
    return read_table(path, Story, "the story", ProviderError)
