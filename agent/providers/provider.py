"""What a provider is, which one a run has, and how one says that it cannot answer. No key is ever in a record."""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

from pydantic import Field

from kernelwright.agent.log.events import Event
from kernelwright.agent.log.records import Ask, Reply, Request
from kernelwright.problems.record.base import Record
from kernelwright.prompts import Prompt

if TYPE_CHECKING:
    from kernelwright.problems import Problem

Api = Literal["chat", "responses"]


class OpenAISettings(Record):
    """Where and how to ask. Holds no key, so it may be written down."""

    base_url: str | None = None
    """None is the variable OPENAI_BASE_URL, or else OpenAI's own."""
    api_key_env: str = "OPENAI_API_KEY"
    """Name of the variable that holds the key; empty for a server that asks for none."""
    needs_key: bool = False
    """Whether to refuse at once where the variable holds none; OpenAI's own server always needs one."""
    api: Api = "chat"
    max_retries: int = Field(default=5, ge=0)
    """Of one request, by the client: on lost connections, timeouts, 408, 409, 429 and 5xx; it heeds Retry-After."""
    timeout_s: float = Field(default=600, gt=0)
    """Longest silence of the server."""
    deadline_s: float = Field(default=3600, gt=0)
    """Longest time for one request in all, retries included."""


class ProviderOptions(Record):
    """Who answers. Written into the run's header, so that a resumed run asks the same."""

    kind: str = "recorded"
    """The name of a provider, or `path/to/file.py:function`; see `agent.providers.registry`."""
    server: OpenAISettings = OpenAISettings()
    """For `server`: where and how to ask; for `local`, in which form."""
    folder: str | None = None
    """For `files`: where tasks and answers lie; None is `tasks` in the run's own folder.

    For `recorded`: where stories lie, as in the catalog; None is the catalog that ships.
    """
    model_file: str | None = None
    """For `local`: a GGUF file; None is the small model that `kernelwright models fetch` gets."""
    cache: str | None = None
    """A folder of answers that is looked into before anybody is asked; None for none."""


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
    def name(self) -> str: ...

    async def complete(self, request: Request, ask: Ask, prompt: Prompt) -> Reply:
        """One answer to `request`, which `ask` and `prompt` led to. Raises `ProviderError` and `NoMoreAnswers`."""
        ...


class RunRecord(Protocol):
    """What a provider may know of the run that it answers; a `RunLog` is one."""

    @property
    def folder(self) -> Path: ...

    def events(self, problem: str | None = None, after: int = 0) -> Iterable[Event]: ...

    def problem(self, name: str) -> "Problem": ...
