"""`local`: a small model on this machine. Its server is asked through the same client as any other."""

import asyncio
from pathlib import Path

from kernelwright.agent.log.records import Ask, Reply, Request
from kernelwright.agent.providers.options import Api, OpenAISettings, ProviderOptions
from kernelwright.agent.providers.provider import Provider, ProviderError, RunRecord
from kernelwright.agent.providers.servers.client import OpenAIProvider
from kernelwright.agent.providers.servers.local_server import LocalServer, require_runtime
from kernelwright.agent.providers.servers.weights import weights
from kernelwright.prompts import Prompt

LONGEST = 1024
"""Output tokens where no limit is set: a small model may never end by itself."""


class LocalProvider:
    """See the module. The server starts with the first request."""

    name = "local"

    def __init__(self, model: Path | None = None, api: Api = "chat") -> None:
        require_runtime()
        self._model = weights() if model is None else model
        if not self._model.is_file():
            raise ProviderError(f"there is no model file {self._model}; check the path")
        self._api: Api = api
        self._server: LocalServer | None = None
        self._starting = asyncio.Lock()

    async def complete(self, request: Request, ask: Ask, prompt: Prompt) -> Reply:
        """See `Provider.complete`."""
        asked = request if request.max_tokens else request.model_copy(update={"max_tokens": LONGEST})
        reply = await (await self._asked()).complete(asked, ask, prompt)
        return reply.model_copy(update={"provider": self.name})

    def close(self) -> None:
        """End the server, if it was started."""
        if self._server is not None:
            self._server.close()
            self._server = None

    async def _asked(self) -> OpenAIProvider:
        async with self._starting:
            self._server = self._server or await LocalServer.start(self._model)
        return OpenAIProvider(OpenAISettings(base_url=self._server.base_url, api_key_env="", api=self._api))


def provider(options: ProviderOptions, run: RunRecord) -> Provider:
    """A missing runtime and a missing model are told here."""
    return LocalProvider(Path(options.model_file) if options.model_file else None, options.server.api)
