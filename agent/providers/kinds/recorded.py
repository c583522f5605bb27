"""`recorded`: the answers that ship with a catalog problem, or lie in a folder laid out alike.

No network; nothing about their verdicts is stored.
"""

from pathlib import Path

from kernelwright.agent.log.records import Ask, Attempt, Reply, Request, Usage
from kernelwright.agent.log.view import View, fold
from kernelwright.agent.providers.options import ProviderOptions
from kernelwright.agent.providers.provider import NoMoreAnswers, Provider, ProviderError, RunRecord
from kernelwright.agent.providers.story import (
    CATALOG,
    RecordedAnswer,
    Story,
    read_story,
    stories,
    story_folder,
)
from kernelwright.prompts import Prompt


class RecordedProvider:
    """Gives each answer once in a run. Which ones are used up is read from the run's log, so a resumed run goes on."""

    name = "recorded"

    def __init__(self, run: RunRecord, catalog: Path = CATALOG) -> None:
        self._run = run
        self._catalog = catalog
        self._given: dict[tuple[str, int], str] = {}
        """File by problem and attempt. Beside the log, since several answers may be on their way into it."""

    async def complete(self, request: Request, ask: Ask, prompt: Prompt) -> Reply:
        """The first unused answer of that role that follows the parent's answer, else the first of that role."""
        dtype = self._run.problem(ask.problem).dtype
        story = read_story(ask.problem, ask.target, self._catalog, dtype)
        entry = self._entry(story, ask)
        self._given[ask.problem, ask.attempt] = entry.file
        return Reply(
            text=_text(story_folder(ask.problem, ask.target, self._catalog, dtype) / entry.file),
            finish_reason=entry.finish_reason,
            model=self.name,
            usage=Usage(),
            provider=self.name,
            provider_request_id=entry.file,
            latency_s=None,
            note=f"recorded answer {entry.file}; its prompt {_likeness(entry, prompt)}; {story.label}",
        )

    def _entry(self, story: Story, ask: Ask) -> RecordedAnswer:
        view = fold(ask.problem, self._run.events(ask.problem))
        used = self._files(view) | {
            attempt: file for (problem, attempt), file in self._given.items() if problem == ask.problem
        }
        used.pop(ask.attempt, None)
        unused = [entry for entry in story.entries if entry.role == ask.role and entry.file not in used.values()]
        parent = None if ask.parent is None else used.get(ask.parent)
        followed = (entry for entry in unused if _parent_file(story, entry) == parent)
        chosen = next(followed, None) or next(iter(unused), None)
        if chosen is None:
            raise NoMoreAnswers(f"no recorded answer to {ask.role!r} is left for problem {ask.problem!r}")
        return chosen

    def _files(self, view: View) -> dict[int, str]:
        return {attempt.number: file for attempt in view.attempts if (file := self._file(attempt))}

    def _file(self, attempt: Attempt) -> str | None:
        reply = attempt.reply
        return reply.provider_request_id if reply and reply.provider == self.name else None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ProviderError(f"cannot read the recorded answer {path}: {error}; restore it") from error


def _parent_file(story: Story, entry: RecordedAnswer) -> str | None:
    return None if entry.parent is None else story.entries[entry.parent - 1].file


def _likeness(entry: RecordedAnswer, prompt: Prompt) -> str:
    if entry.prompt_digest == prompt.digest:
        return "was the same"
    if entry.stable_digest == prompt.stable_digest:
        return "was the same but for measured values"
    return "differs from the prompt rendered now"


def provider(options: ProviderOptions, run: RunRecord) -> Provider:
    """From the folder that was asked for, else from the catalog that ships."""
    return RecordedProvider(run, stories(options.folder))
