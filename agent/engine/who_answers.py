"""Which provider answers a run: the one place where a choice that can be written down becomes an object."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Literal, assert_never

from kernelwright.agent.log.run_log import RunLog
from kernelwright.agent.providers.answers import CachedProvider, ReplyCache
from kernelwright.agent.providers.files import FilesProvider
from kernelwright.agent.providers.protocol import Provider
from kernelwright.agent.providers.recorded import RecordedProvider
from kernelwright.agent.providers.servers.batchfile import BatchProvider
from kernelwright.agent.providers.servers.client import OpenAIProvider, OpenAISettings
from kernelwright.agent.providers.servers.local import LocalProvider
from kernelwright.agent.providers.simulated.parts import SimulatedProvider
from kernelwright.problems.record.base import Record

Kind = Literal["server", "recorded", "files", "batch", "local", "simulated"]


class ProviderOptions(Record):
    """Who answers. Written into the run's header, so that a resumed run asks the same; it holds no key."""

    kind: Kind = "recorded"
    server: OpenAISettings = OpenAISettings()
    """For `server`: where and how to ask; for `local`, in which form."""
    folder: str | None = None
    """For `files`: where tasks and answers lie; None is `tasks` in the run's own folder."""
    model_file: str | None = None
    """For `local`: a GGUF file; None is the small model that `kernelwright models fetch` gets."""
    cache: str | None = None
    """A folder of answers that is looked into before anybody is asked; None for none."""


def provider_for(options: ProviderOptions, log: RunLog) -> Provider:
    """The provider; `ProviderError` for what the user or the machine lacks, such as a key. See `providing`."""
    provider = _bare(options, log)
    if options.cache is None:
        return provider
    return CachedProvider(provider, ReplyCache(Path(options.cache)), _place(options, provider))


def check_provider(options: ProviderOptions) -> None:
    """Raise, before a run is started, what `provider_for` would."""
    match options.kind:
        case "server":
            OpenAIProvider(options.server)
        case "local":
            LocalProvider(_model_file(options))


@asynccontextmanager
async def providing(options: ProviderOptions, log: RunLog) -> AsyncIterator[Provider]:
    """The provider for as long as the block lasts: what it started ends with it."""
    provider = provider_for(options, log)
    try:
        yield provider
    finally:
        bare = provider.provider if isinstance(provider, CachedProvider) else provider
        if isinstance(bare, LocalProvider):
            bare.close()


def _bare(options: ProviderOptions, log: RunLog) -> Provider:
    match options.kind:
        case "server":
            return OpenAIProvider(options.server)
        case "recorded":
            return RecordedProvider(log)
        case "files":
            return FilesProvider(Path(options.folder) if options.folder else log.folder / "tasks")
        case "batch":
            return BatchProvider()
        case "local":
            return LocalProvider(_model_file(options), options.server.api)
        case "simulated":
            return SimulatedProvider(latency_s=(0.0, 0.0))
    assert_never(options.kind)


def _model_file(options: ProviderOptions) -> Path | None:
    return None if options.model_file is None else Path(options.model_file)


def _place(options: ProviderOptions, provider: Provider) -> str:
    """What decides an answer beside the request."""
    if isinstance(provider, OpenAIProvider):
        return f"{provider.base_url} {options.server.api}"
    return f"{options.kind} {options.model_file or ''}"
