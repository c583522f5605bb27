"""A small model on this machine, behind llama.cpp's own server on the loopback interface: a child that ends with us."""

import asyncio
import importlib.util
import subprocess
import sys
import threading
from pathlib import Path

from kernelwright.agent.providers.provider import ProviderError
from kernelwright.problems.texts.libraries import LibraryMissing

RUNTIME = "xllamacpp"
SERVER = Path(__file__).with_name("llama.py")
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


def require_runtime() -> None:
    """`ProviderError` where the runtime is not installed."""
    if importlib.util.find_spec(RUNTIME) is None:
        raise LibraryMissing.of_extra("a local model", RUNTIME, "local")
