"""What a provider is, and how one says that it cannot answer."""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from kernelwright.agent.log.events import Event
from kernelwright.agent.log.records import Ask, Reply, Request
from kernelwright.prompts import Prompt

if TYPE_CHECKING:
    from kernelwright.problems import Problem


class ProviderError(Exception):
    """No answer could be had; the message is one sentence with the remedy and never holds a key."""

    def __init__(self, message: str, *, retryable: bool = False) -> None:
        super().__init__(message)
        self.retryable = retryable
        """Whether the same request may well succeed a little later."""


class AnswerPending(ProviderError):
    """No answer is there yet, since someone else gives it later: the search rests, and other problems go on."""


class NoMoreAnswers(Exception):
    """The provider has given all the answers that it has; an ordinary end of a search."""


class Provider(Protocol):
    """Answers requests, several at a time where the caller wants it.

    What it starts, it ends in a method `close()`, if it has one. Where two of its answers to one request may differ by
    more than luck, an attribute `place` says by what, such as a server's address: the response cache goes by it.
    """

    @property
    def name(self) -> str:
        """What the record of a reply calls the provider."""
        ...

    async def complete(self, request: Request, ask: Ask, prompt: Prompt) -> Reply:
        """One answer to `request`, which `ask` and `prompt` led to. Raises `ProviderError` and `NoMoreAnswers`."""
        ...


class RunRecord(Protocol):
    """What a provider may know of the run that it answers; a `RunLog` is one."""

    @property
    def folder(self) -> Path:
        """The run's own, where it may keep files."""
        ...

    def events(self, problem: str | None = None, after: int = 0) -> Iterable[Event]:
        """Those of one problem, in order."""
        ...

    def problem(self, name: str) -> "Problem":
        """A problem of the run, by its name."""
        ...
