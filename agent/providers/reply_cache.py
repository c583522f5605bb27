"""Answers on disk, each under the digest of what was asked and where: a response cache for any provider."""

import hashlib
from pathlib import Path

from pydantic import ValidationError

from kernelwright.agent.log.records import Ask, Reply, Request
from kernelwright.agent.providers.provider import Provider, ProviderError
from kernelwright.prompts import Prompt
from kernelwright.sandbox.machine.atomic import write_atomically

CACHED = "from the response cache"


class ReplyCache:
    """A folder of replies. Many processes may share it: a reader sees a whole reply or none."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def find(self, key: str) -> Reply | None:
        """The reply under `key`; None where there is none. `ProviderError` where the file cannot be read as one."""
        path = self._path(key)
        try:
            return Reply.model_validate_json(path.read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, ValidationError) as error:
            raise ProviderError(
                f"{path} is no reply that can be read ({type(error).__name__}); delete that file"
            ) from error

    def keep(self, key: str, reply: Reply) -> None:
        """Put the reply under `key`; of several for one key, the last one written stays. Raises `ProviderError`."""
        path = self._path(key)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, reply.model_dump_json())
        except OSError as error:
            raise ProviderError(
                f"cannot write {path} ({error.strerror}); make room or choose another folder"
            ) from error

    def _path(self, key: str) -> Path:
        return self.folder / key[:2] / f"{key}.json"


class CachedProvider:
    """Asks another provider only for what `answers` does not hold. A failure is never kept."""

    def __init__(self, provider: Provider, answers: ReplyCache, place: str) -> None:
        self.provider = provider
        self.answers = answers
        self.place = place
        """What decides an answer beside the request: the address of the server."""

    @property
    def name(self) -> str:
        """That of the provider behind it."""
        return self.provider.name

    async def complete(self, request: Request, ask: Ask, prompt: Prompt) -> Reply:
        """See `Provider.complete`. A reply from the cache says so, took no time and cost 0 USD; its tokens stay."""
        key = answer_key(request, self.place)
        found = self.answers.find(key)
        if found is not None:
            free = found.usage.model_dump() | {"cost_usd": 0.0}
            return Reply.model_validate(found.model_dump() | {"usage": free, "latency_s": None, "note": CACHED})
        reply = await self.provider.complete(request, ask, prompt)
        self.answers.keep(key, reply)
        return reply


def answer_key(request: Request, place: str) -> str:
    """sha256 over the place and the request's digest, which covers the sample's number: repeats stay distinct."""
    return hashlib.sha256(f"{place}\n{request.digest}".encode()).hexdigest()
