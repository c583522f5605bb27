"""Providers: what answers a request, how one is found by its name, and the cache of replies.

Each other file of this folder is a provider, named as `--provider` takes it, whose `provider(options, run)` makes one.
No key is ever in a record.
"""

import contextlib
import hashlib
import logging
import os
import pkgutil
import sys
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, Protocol

from pydantic import ValidationError

from kernelwright.agent.config import Api, ProviderOptions, ServerOptions, read_provider
from kernelwright.agent.log.records import Ask, Reply, Request
from kernelwright.agent.log.store import RunLog
from kernelwright.agent.strategies import function_in
from kernelwright.problems.problem import Record, read_table
from kernelwright.prompts import Prompt
from kernelwright.sandbox.storage import write_atomically


class ProviderError(Exception):
    """A failure to answer; the message is one sentence with the remedy and never holds a key."""

    def __init__(self, message: str, *, retryable: bool = False) -> None:
        super().__init__(message)
        self.retryable = retryable  # the same request may succeed a little later


class AnswerPending(ProviderError):
    """An answer that somebody else gives later: the search pauses, and other problems continue."""


class NoMoreAnswers(Exception):
    """The end of a provider's stored answers; an ordinary end of a search."""


class Provider(Protocol):
    """Answers requests, several concurrently where the caller wants it.

    A method `close()`, if it has one, ends what it started. An attribute `place`, such as a server's address, says what
    else decides an answer: the response cache uses it in its keys.
    """

    @property
    def name(self) -> str: ...

    async def complete(self, request: Request, ask: Ask, prompt: Prompt) -> Reply:
        """Answer `request`, which `ask` and `prompt` led to. Raises `ProviderError` and `NoMoreAnswers`."""
        ...


LOG = logging.getLogger("kernelwright.agent.providers")
CACHED = "from the response cache"
TRIED_BYTES = 1 << 16  # about a long reply


class ReplyCache:
    """A folder of replies. Many processes may share it: a reader sees a complete reply or none."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def try_out(self) -> None:
        """Make the folder and try to write there, leaving no file. Raises `ProviderError`."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.folder) as file:
                file.write(bytes(TRIED_BYTES))
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            why = f"cannot write to the response cache {self.folder} ({error.strerror})"
            raise ProviderError(f"{why}; make room, check its permissions, or choose another --cache folder") from error

    def find(self, key: str) -> Reply | None:
        """Read the reply under `key`; None where there is none. Raises `ProviderError` for a damaged file."""
        path = self._path(key)
        try:
            return Reply.model_validate_json(path.read_bytes())
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise ProviderError(f"cannot read {path} ({error.strerror}); check its permissions") from error
        except ValidationError as error:
            raise ProviderError(f"{path} is not a reply that can be read; delete that file") from error

    def keep(self, key: str, reply: Reply) -> None:
        """Store the reply under `key`, in place of an earlier one. Raises `OSError`."""
        write_atomically(self._path(key), reply.model_dump_json())

    def _path(self, key: str) -> Path:
        return self.folder / key[:2] / f"{key}.json"


class CachedProvider:
    """Another provider behind a cache of its replies. A failure is never kept.

    A reply that cannot be kept is given all the same, since it was paid for; one warning says so.
    """

    def __init__(self, provider: Provider, answers: ReplyCache, place: str) -> None:
        self.provider, self.answers, self.place = provider, answers, place
        self.name = provider.name
        self._has_warned = False

    async def complete(self, request: Request, ask: Ask, prompt: Prompt) -> Reply:
        """See `Provider`. A reply from the cache says so, took no time and cost 0 USD; its tokens stay."""
        key = answer_key(request, self.place)
        found = self.answers.find(key)
        if found is not None:
            free = found.usage.model_copy(update={"cost_usd": 0.0})
            return Reply.model_validate(dict(found) | {"usage": free, "latency_s": None, "note": CACHED})
        reply = await self.provider.complete(request, ask, prompt)
        try:
            self.answers.keep(key, reply)
        except OSError as error:
            if not self._has_warned:
                self._has_warned = True
                warning = (
                    f"cannot write to the response cache {self.answers.folder} ({error.strerror}): this run keeps its "
                    "answers, but another one would pay for them again; make room or check the permissions"
                )
                with contextlib.suppress(OSError):  # standard error may go to the very disk that is full
                    LOG.warning("%s", warning)
                    print(f"kernelwright: {warning}", file=sys.stderr, flush=True)
        return reply

    def close(self) -> None:
        close_provider(self.provider)


def answer_key(request: Request, place: str) -> str:
    """Hash the place and the request's digest, which covers the sample's number: repeats stay distinct."""
    return hashlib.sha256(f"{place}\n{request.digest}".encode()).hexdigest()


SHIPPED = Path(__file__).parents[1] / "data" / "providers.toml"


class Preset(Record):
    base_url: str
    key: str = ""  # name of the environment variable that holds the key; empty for a server without keys
    api: Api = "chat"

    @property
    def options(self) -> ServerOptions:
        return ServerOptions(base_url=self.base_url, api_key_env=self.key, needs_key=bool(self.key), api=self.api)


def load_presets(path: Path | None = None) -> dict[str, Preset]:
    """Read the presets that ship, overridden by those of the user's own table. Raises `ProviderError`."""
    found: dict[str, Preset] = {}
    for file in filter(None, (SHIPPED, path)):
        found |= read_table(file, dict[str, Preset], "the table of servers", ProviderError)
    return found


GROUP = "kernelwright.providers"
Maker = Callable[[Any, RunLog], Provider]


class _NotStarted:
    """In place of the run's log, for a provider that is only tried out."""

    folder = Path()

    def events(self, problem: str | None = None, after: int = 0) -> tuple[()]:
        return ()

    def problem(self, name: str) -> None:
        raise ProviderError(f"there is no run yet, and so no problem {name!r} in it; ask once it has started")


def providers() -> dict[str, EntryPoint]:
    """List those that ship, then those of installed packages, which may not take a shipped name."""
    names = [module.name for module in pkgutil.iter_modules(__path__) if not module.name.startswith("_")]
    shipped = {name: EntryPoint(name, f"{__name__}.{name}:provider", GROUP) for name in names}
    return shipped | {point.name: point for point in entry_points(group=GROUP) if point.name not in shipped}


def provider_for(options: ProviderOptions, run: RunLog) -> Provider:
    """Make the provider. Raises `ProviderError`, for instance without a key. See `providing`."""
    known, name = providers(), options.kind
    make: Maker
    if ":" in name:
        make = function_in(name, "provider", ProviderError, "(options, run)")
    elif name in known:
        make = known[name].load()
    else:
        there = f"{', '.join(known)}, and any function as path/to/file.py:function"
        raise ProviderError(f"no provider {name!r}; there are: {there}")
    provider = make(read_provider(options), run)
    if options.cache is None:
        return provider
    place = getattr(provider, "place", f"{name} {getattr(options, 'model_file', None) or ''}")
    return CachedProvider(provider, ReplyCache(Path(options.cache)), place)


def check_provider(options: ProviderOptions) -> None:
    """Raise, before a run starts, the error of `provider_for`, or that of a response cache that cannot be written."""
    not_started: Any = _NotStarted()
    provider_for(options, not_started)
    if options.cache is not None:
        ReplyCache(Path(options.cache)).try_out()


@asynccontextmanager
async def providing(options: ProviderOptions, run: RunLog) -> AsyncIterator[Provider]:
    """Make the provider, and close it at the end."""
    provider = provider_for(options, run)
    try:
        yield provider
    finally:
        close_provider(provider)


def close_provider(provider: Provider) -> None:
    if (close := getattr(provider, "close", None)) is not None:
        close()
