"""`recorded`: the answers that ship with a catalog problem, or lie in a folder laid out alike.

`recorded/TARGET/` holds a recorded session: `story.toml` and one Markdown file for each reply; `recorded/TARGET-DTYPE/`
the same for the problem cast to another dtype, such as `cuda-bfloat16`. No verdicts are stored.
"""

from pathlib import Path
from typing import Self

from pydantic import Field, model_validator

from kernelwright import problems
from kernelwright.agent.config import RecordedOptions
from kernelwright.agent.log.records import Ask, Reply, Request
from kernelwright.agent.log.store import RunLog
from kernelwright.agent.log.view import fold
from kernelwright.agent.providers import NoMoreAnswers, Provider, ProviderError
from kernelwright.problems.languages import TARGETS
from kernelwright.problems.problem import Record, read_table
from kernelwright.prompts import Prompt, Role, Target

CATALOG = Path(problems.__file__).parent / "catalog"
SESSION_FILE = "story.toml"


class RecordedAnswer(Record):
    file: str = Field(pattern=r"^[\w-]+\.md$")
    """Name of the reply's file in the session's folder, such as `02-repair.md`."""
    role: Role
    parent: int | None = None
    prompt_digest: str  # of the prompt that it answers
    stable_digest: str
    finish_reason: str = "stop"


class RecordedSession(Record):
    """A recorded session, as in `story.toml`. Entries are numbered from 1 in their order."""

    label: str = Field(min_length=1)
    """The author of the answers, and the prompts that they answer: shown wherever they are used."""
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
        """The number of answers that start from the reference: `SearchConfig.drafts` of the session."""
        return sum(1 for entry in self.entries if entry.role == "propose")


def sessions_folder(folder: str | None) -> Path:
    return CATALOG if folder is None else Path(folder)


def session_folder(problem: str, target: Target, catalog: Path = CATALOG, dtype: str | None = None) -> Path:
    """Name the folder of the recorded answers for a problem and target; `dtype`: the one it is cast to."""
    return catalog / problem / "recorded" / (target if dtype is None else f"{target}-{dtype}")


def recorded_targets(problem: str, catalog: Path = CATALOG, dtype: str | None = None) -> tuple[Target, ...]:
    return tuple(
        target for target in TARGETS if (session_folder(problem, target, catalog, dtype) / SESSION_FILE).is_file()
    )


def read_session(problem: str, target: Target, catalog: Path = CATALOG, dtype: str | None = None) -> RecordedSession:
    """Read the recorded session of a problem for a target. Raises `ProviderError`."""
    path = session_folder(problem, target, catalog, dtype) / SESSION_FILE
    if not path.is_file():
        there = ", ".join(recorded_targets(problem, catalog, dtype)) or "none"
        what = f"problem {problem!r}{f' in {dtype}' if dtype else ''} and target {target!r}"
        raise ProviderError(f"no answers are recorded for {what} (targets that have some: {there}); name a model")
    return read_table(path, RecordedSession, "the recorded session", ProviderError)


class RecordedProvider:
    """Gives each answer once in a run. The run's log shows which ones are used up, so a resumed run continues."""

    name = "recorded"

    def __init__(self, run: RunLog, catalog: Path = CATALOG) -> None:
        self._run = run
        self._catalog = catalog
        self._given: dict[tuple[str, int], str] = {}
        """File by problem and attempt: answers that may not have reached the log yet."""

    async def complete(self, request: Request, ask: Ask, prompt: Prompt) -> Reply:
        """Give the first unused answer of that role that follows the parent's answer, else the first of that role."""
        dtype = self._run.problem(ask.problem).dtype
        session = read_session(ask.problem, ask.target, self._catalog, dtype)
        entry = self._entry(session, ask)
        self._given[ask.problem, ask.attempt] = entry.file
        path = session_folder(ask.problem, ask.target, self._catalog, dtype) / entry.file
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ProviderError(f"cannot read the recorded answer {path}: {error}; restore it") from error
        likeness = "differs from the prompt rendered now"
        if entry.prompt_digest == prompt.digest:
            likeness = "was the same"
        elif entry.stable_digest == prompt.stable_digest:
            likeness = "was the same but for measured values"
        note = f"recorded answer {entry.file}; its prompt {likeness}; {session.label}"
        own = {"finish_reason": entry.finish_reason, "provider_request_id": entry.file, "note": note}
        return Reply(text=text, model=self.name, provider=self.name, **own)

    def _entry(self, session: RecordedSession, ask: Ask) -> RecordedAnswer:
        view = fold(ask.problem, self._run.events(ask.problem))
        used: dict[int, str] = {}
        for attempt in view.attempts:
            if (reply := attempt.reply) and reply.provider == self.name and reply.provider_request_id:
                used[attempt.number] = reply.provider_request_id
        used |= {attempt: file for (problem, attempt), file in self._given.items() if problem == ask.problem}
        used.pop(ask.attempt, None)
        unused = [entry for entry in session.entries if entry.role == ask.role and entry.file not in used.values()]
        parent = None if ask.parent is None else used.get(ask.parent)
        files = [None, *(entry.file for entry in session.entries)]
        followed = (entry for entry in unused if files[entry.parent or 0] == parent)
        chosen = next(followed, None) or next(iter(unused), None)
        if chosen is None:
            raise NoMoreAnswers(f"no recorded answer to {ask.role!r} is left for problem {ask.problem!r}")
        return chosen


def provider(options: RecordedOptions, run: RunLog) -> Provider:
    return RecordedProvider(run, sessions_folder(options.folder))
