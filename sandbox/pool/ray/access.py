"""Who may use a Ray cluster: whoever has its token, kept in a file that nobody else can read.

Ray runs whatever code a client sends it, so access to a cluster is an account on each of its machines. It has had token
authentication since 2.52, off by default; here it is on unless the user turned it off by name.
"""

import contextlib
import os
import secrets
import shutil
import socket
import stat
import sys
import tempfile
from collections.abc import Mapping, MutableMapping
from pathlib import Path

from kernelwright.sandbox.machine.cache import cache_root
from kernelwright.sandbox.pool.protocol import ExecutorError

MODE, TOKEN, TOKEN_PATH = "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"
OPEN_TO_OTHERS = stat.S_IRWXG | stat.S_IRWXO
KNOCKING_S = 10.0
SESSIONS = "kwray-"
LOOPBACK = "127.0.0.1"
CLUSTERS = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
"""Whether a machine may be part of a cluster of several. Where it may, Ray listens on every address, whatever it is
told; where it may not, on the loopback alone. Ray sets it by itself on two systems, and reads it on every one."""


def require_listener(address: str) -> None:
    """Raise `ExecutorError` where nothing listens at HOST:PORT: Ray would try for minutes before it says so."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), KNOCKING_S).close()
    except OSError as error:
        why = error.strerror or error
        raise ExecutorError(f"nothing answers at {address} ({why}); give the address of a Ray cluster's head") from None


def own_token(environment: Mapping[str, str]) -> Path | None:
    """The token of clusters that this user's programs make for themselves; made where there is none yet.

    One for all of them, since a process can show only the first one that it has read. Raises `ExecutorError` where the
    user named a file that is no use.
    """
    if environment.get(TOKEN) or environment.get(TOKEN_PATH):
        return found_token(environment, LOOPBACK)
    folder = cache_root() / "ray"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = folder / "token"
    if not path.exists():
        make_token(path)
    return found_token({TOKEN_PATH: str(path)}, LOOPBACK)


def make_token(path: Path) -> None:
    """A new token in a file that only this user can read; nothing where another process was quicker."""
    whole = path.with_name(f".{path.name}-{secrets.token_hex(8)}")
    fd = os.open(whole, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with open(fd, "w", encoding="ascii") as file:
        file.write(secrets.token_hex(32))
    with contextlib.suppress(FileExistsError):
        os.link(whole, path)
    whole.unlink()


def found_token(environment: Mapping[str, str], address: str) -> Path | None:
    """The file with the token of a cluster that runs already; None where the environment holds the token itself.

    Raises `ExecutorError` where there is none, or others could read it.
    """
    if environment.get(TOKEN):
        return None
    given = environment.get(TOKEN_PATH)
    path = Path(given) if given else Path.home() / ".ray" / "auth_token"
    try:
        mode = path.stat().st_mode
    except OSError:
        raise ExecutorError(
            f"there is no token for the Ray cluster at {address} in {path}; copy the file that the cluster was started "
            f"with there, or name it in {TOKEN_PATH}"
        ) from None
    if mode & OPEN_TO_OTHERS:
        raise ExecutorError(f"others can read the token of the Ray cluster in {path}; chmod 600 {path}")
    return path


def checked_address(address: str) -> str:
    """HOST:PORT of a cluster's head. Raises `ExecutorError` for anything else."""
    host, _, port = address.rpartition(":")
    if "://" in address or not host or not port.isdigit():
        raise ExecutorError(f"--address is {address!r}; give HOST:PORT of the cluster's head, such as 10.0.0.5:6379")
    return address


def wants_token(environment: Mapping[str, str]) -> bool:
    """Whether Ray has to ask for a token: unless the user turned that off by name."""
    return environment.get(MODE, "token") == "token"


def require_token(environment: MutableMapping[str, str], token: Path | None) -> None:
    """Have Ray ask for the token, and show it. Ray reads this once, when it is imported.

    Raises `ExecutorError` where that has happened without it.
    """
    if "ray" in sys.modules and environment.get(MODE) != "token":
        raise ExecutorError("Ray was imported before it was told to ask for a token; set RAY_AUTH_MODE=token first")
    environment[MODE] = "token"
    if token is not None:
        environment[TOKEN_PATH] = str(token)


def stay_on_this_machine(environment: MutableMapping[str, str]) -> None:
    """Have Ray listen on the loopback alone. It reads this once, when it is imported."""
    environment[CLUSTERS] = "0"


def session_folder() -> Path:
    """A new private folder for a cluster's sessions; what drivers left that were killed is removed.

    Its path is short, for Ray makes sockets deep in it.
    """
    for left in Path(tempfile.gettempdir()).glob(f"{SESSIONS}[0-9]*-*"):
        pid = left.name.removeprefix(SESSIONS).partition("-")[0]
        with contextlib.suppress(FileNotFoundError):  # another driver was quicker
            if left.stat().st_uid == os.getuid() and not Path(f"/proc/{pid}").exists():
                shutil.rmtree(left, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix=f"{SESSIONS}{os.getpid()}-"))
