"""Answers on disk, each under the digest of what was asked and where: a response cache for any provider."""

import contextlib
import hashlib
import logging
import os
import sys
import tempfile
from pathlib import Path

from pydantic import ValidationError

from kernelwright.agent.log.records import Ask, Reply, Request
from kernelwright.agent.providers.provider import Provider, ProviderError
from kernelwright.prompts import Prompt
from kernelwright.sandbox.machine.atomic import write_atomically

LOG = logging.getLogger("kernelwright.agent.providers")
CACHED = "from the response cache"
TRIED_BYTES = 1 << 16
"""About a long reply."""


class ReplyCache:
    """A folder of replies. Many processes may share it: a reader sees a whole reply or none."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def try_out(self) -> None:
        """Make the folder and write to it, as later a reply, and leave no file there. Raises `ProviderError`."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.folder) as file:
                file.write(bytes(TRIED_BYTES))
                file.flush()
                os.fsync(file.fileno())
        except (FileExistsError, NotADirectoryError) as error:
            raise ProviderError(
                f"the response cache {self.folder} cannot be a folder, since a file is in its way; "
                "choose another --cache folder"
            ) from error
        except OSError as error:
            raise ProviderError(
                f"cannot write to the response cache {self.folder} ({error.strerror}); make room, check its "
                "permissions, or choose another --cache folder"
            ) from error

    def find(self, key: str) -> Reply | None:
        """The reply under `key`; None where there is none. `ProviderError` where the file cannot be read as one."""
        path = self._path(key)
        try:
            return Reply.model_validate_json(path.read_bytes())
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise ProviderError(f"cannot read {path} ({error.strerror}); check its permissions") from error
        except ValidationError as error:
            raise ProviderError(f"{path} is no reply that can be read; delete that file") from error

    def keep(self, key: str, reply: Reply) -> None:
        """Put the reply under `key`; of several for one key, the last one written stays. Raises `OSError`."""
        path = self._path(key)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, reply.model_dump_json())

    def _path(self, key: str) -> Path:
        return self.folder / key[:2] / f"{key}.json"


class CachedProvider:
    """Asks another provider only for what `answers` does not hold. A failure is never kept.

    A reply that can not be kept is given all the same, since it was paid for; this is said once.
    """

    def __init__(self, provider: Provider, answers: ReplyCache, place: str) -> None:
        self.provider = provider
        self.answers = answers
        self.place = place
        """What decides an answer beside the request: the address of the server."""
        self._told = False

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
        try:
            self.answers.keep(key, reply)
        except OSError as error:
            self._tell_once(error)
        return reply

    def _tell_once(self, error: OSError) -> None:
        if self._told:
            return
        self._told = True
        told = (
            f"cannot write to the response cache {self.answers.folder} ({error.strerror}): this run keeps its answers, "
            "but another one would pay for them again; make room or check the permissions"
        )
        with contextlib.suppress(OSError):  # standard error may go to the very disk that is full
            LOG.warning("%s", told)
            print(f"kernelwright: {told}", file=sys.stderr, flush=True)


def answer_key(request: Request, place: str) -> str:
    """sha256 over the place and the request's digest, which covers the sample's number: repeats stay distinct."""
    return hashlib.sha256(f"{place}\n{request.digest}".encode()).hexdigest()
