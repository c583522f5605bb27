"""Who answers a run, as its header keeps it: `ProviderOptions`. No key is ever in it."""

from typing import Literal

from pydantic import Field

from kernelwright.problems.record.base import Record

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
