"""`local`: a small model on this machine, behind llama.cpp's own server on the loopback interface.

The server is a child process that ends with this one. It is asked through the same client as any other server.
"""

import asyncio
import importlib.util
import subprocess
import sys
import threading
from pathlib import Path

from kernelwright.agent.log.records import Ask, Reply, Request
from kernelwright.agent.providers.protocol import ProviderError
from kernelwright.agent.providers.servers.client import OpenAIProvider, OpenAISettings
from kernelwright.agent.providers.servers.weights import weights
from kernelwright.agent.providers.servers.wires import Api
from kernelwright.prompts import Prompt

RUNTIME = "xllamacpp"
SERVER = Path(__file__).with_name("llama.py")
LONGEST = 1024
"""Output tokens where no limit is set: a small model may never end by itself."""
START_S = 120.0


class LocalServer:
    """A server of the weights in a file, on a free port. Close it; it also ends with this process."""

    def __init__(self, model: Path, threads: int = 1, process: "subprocess.Popen[str] | None" = None) -> None:
        """Wait until it can answer, for `START_S` at most; `process` is one that was begun already."""
        self._process = process or _begun(model, threads)
        self.base_url = self._announced(model)

    @classmethod
    async def start(cls, model: Path) -> "LocalServer":
        """The same while other tasks go on. Where whoever waits is cancelled the child is ended."""
        process = _begun(model)
        try:
            return await asyncio.to_thread(cls, model, process=process)
        except asyncio.CancelledError:
            process.kill()
            raise

    def close(self) -> None:
        """End the child."""
        self._process.kill()
        self._process.communicate()

    def wait(self) -> None:
        """Until the child ends by itself."""
        self._process.wait()

    def __enter__(self) -> "LocalServer":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _announced(self, model: Path) -> str:
        """The address that the child prints once it can answer."""
        assert self._process.stdout is not None
        alarm = threading.Timer(START_S, self._process.kill)
        alarm.start()
        line = self._process.stdout.readline().strip()
        alarm.cancel()
        if not line:
            self.close()
            raise ProviderError(f"the server of {model} did not start; check that the file is a GGUF model")
        return line


def _begun(model: Path, threads: int = 1) -> "subprocess.Popen[str]":
    require_runtime()
    # -P: nothing that lies beside the script, or where the user happens to be, may pass for a module.
    command = [sys.executable, "-P", str(SERVER), str(model), "--threads", str(threads)]
    return subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )


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


def require_runtime() -> None:
    """`ProviderError` where the runtime is not installed."""
    if importlib.util.find_spec(RUNTIME) is None:
        raise ProviderError(f"a local model needs {RUNTIME}; install it with `pip install kernelwright[local]`")
