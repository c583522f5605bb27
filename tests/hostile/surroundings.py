"""What a user has on a machine, planted around the judge: files, servers, another process; and what was left of it."""

import contextlib
import ctypes
import hashlib
import os
import secrets
import site
import socket
import subprocess
import sys
from pathlib import Path

from kernelwright import problems
from kernelwright.sandbox.jail.layers import group_parents
from kernelwright.sandbox.jail.zygote import MARK, ZYGOTES

CHECKOUT = Path(problems.__file__).resolve().parents[1]
"""Or, where the package is installed, the package itself."""
SECRET = "-----BEGIN PLANTED KEY-----"


class Surroundings:
    """Everything that an attack may look for or damage. `around` tells the candidate where it is."""

    def __init__(self, folder: Path) -> None:
        self.mark = f"kw-hostile-{secrets.token_hex(4)}"
        """The name of whatever the attacks try to leave behind; other runs of these tests have another."""
        self.segment = 1 + secrets.randbelow(2**31 - 1)
        """The same for System V objects."""
        self.work = folder / "work"
        self.home, self.outside = folder / "home", folder / "outside"
        for path in (self.work, self.home / ".ssh", self.home / ".cache" / "torch_extensions", self.outside):
            path.mkdir(parents=True)
        self.outside.chmod(0o777)
        self.key = self.home / ".ssh" / "id_ed25519"
        self._plant(self.key, SECRET, 0o600)
        self._plant(self.home / ".cache" / "torch_extensions" / "kept.so", "library", 0o644)
        self._plant(self.home / ".bashrc", "alias x=y", 0o644)
        self.memory = ctypes.create_string_buffer(SECRET.encode())
        self.sockets = self._serve(folder)
        self.bystander = subprocess.Popen(["/bin/sleep", "600"])

    @staticmethod
    def _plant(path: Path, text: str, mode: int) -> None:
        path.write_text(text)
        path.chmod(mode)

    def _serve(self, folder: Path) -> dict[str, socket.socket]:
        """Servers of a user, which an attack may try to reach. Only the network's are on the loopback interface."""
        packet = socket.SOCK_DGRAM
        sockets = {
            "tcp": socket.create_server(("127.0.0.1", 0)),
            "udp": socket.socket(socket.AF_INET, packet),
            "abstract": socket.socket(socket.AF_UNIX),
            "named": socket.socket(socket.AF_UNIX),
            "named_packet": socket.socket(socket.AF_UNIX, packet),
        }
        sockets["udp"].bind(("127.0.0.1", 0))
        sockets["abstract"].bind("\0" + self.mark)
        for name in ("named", "named_packet"):
            sockets[name].bind(str(folder / name))
            (folder / name).chmod(0o777)
        for name in ("abstract", "named"):
            sockets[name].listen()
        for server in sockets.values():
            server.setblocking(False)
        return sockets

    def around(self, namespaces: bool, reference: int, spared: tuple[str, ...] = ()) -> dict[str, object]:
        """What the candidate is told. `granted`: the capability that landlock bounds for a child of root.

        `reference` is the number of the reference's process; `spared` are attempts to leave out.
        """
        kept = 1 << 2 if os.geteuid() == 0 and not namespaces else 0
        return {
            "judge": os.getpid(),
            "bystander": self.bystander.pid,
            "reference": reference,
            "zygotes": ZYGOTES.pids,
            "address": ctypes.addressof(self.memory),
            "tcp": self.sockets["tcp"].getsockname()[1],
            "udp": self.sockets["udp"].getsockname()[1],
            "abstract": self.mark,
            "mark": self.mark,
            "segment": self.segment,
            "named": str(self.sockets["named"].getsockname()),
            "named_packet": str(self.sockets["named_packet"].getsockname()),
            "key": str(self.key),
            "home": str(self.home),
            "outside": str(self.outside),
            "other_folder": next((str(path) for path in self.work.glob("*/reference.py")), "/none"),
            "checkout": str(CHECKOUT),
            "site": [*SITE, sys.base_prefix + "/lib/python3/site-packages"],
            "namespaces": namespaces,
            "granted": kept,
            "spared": spared,
        }

    def state(self) -> dict[str, object]:
        """Everything that must be the same after an attack as before."""
        return {
            "files": {str(path): facts(path) for path in (*self.home.rglob("*"), *self.outside.rglob("*"))},
            "work folders": sorted(path.name for path in self.work.iterdir() if path.is_dir()),
            "site-packages": sorted(path.name for top in SITE for path in Path(top).iterdir()),
            "strays": [str(path) for folder in STRAY for path in Path(folder).glob(f"{self.mark}*")],
            "processes": self._processes(),
            "control groups": sorted(
                path.name for parent in group_parents() for path in parent.glob(f"kernelwright-{os.getpid()}-*")
            ),
            "segments": sum(len(segments(kind, self.segment)) for kind in ("shm", "sem", "msg")),
            "queue": queue_exists(self.mark),
            "abstract sockets": Path("/proc/net/unix").read_text().count(self.mark),
            "callers": sum(map(heard, self.sockets.values())),
            "bystander": self.bystander.poll(),
            "judge's memory": self.memory.value,
        }

    def _processes(self) -> list[int]:
        """Children: their first environment names the test's work folders, or this process where they are forks."""
        found = []
        signs = (f"{self.work}/".encode(), f"{MARK}={os.getpid()}\0".encode())
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                environment = (entry / "environ").read_bytes()
                if any(sign in environment for sign in signs):
                    found.append(int(entry.name))
        return sorted(set(found) - set(ZYGOTES.pids))

    def close(self) -> None:
        """Stop servers and bystander."""
        for server in self.sockets.values():
            server.close()
        self.bystander.kill()
        self.bystander.wait()


SITE = [path for path in site.getsitepackages() if Path(path).is_dir()]
STRAY = ("/dev/shm", "/tmp", "/var/tmp", "/usr/lib", "/etc", "/", "/dev", str(CHECKOUT))


def facts(path: Path) -> tuple[object, ...]:
    """Mode, owner and content of a file."""
    found = path.lstat()
    content = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
    return found.st_mode, found.st_uid, found.st_gid, found.st_mtime_ns, content


def segments(kind: str, key: int) -> list[str]:
    """System V objects of one kind that bear this key."""
    return [line for line in Path(f"/proc/sysvipc/{kind}").read_text().splitlines() if line.split()[0] == str(key)]


def queue_exists(name: str) -> bool:
    """Whether there is a POSIX queue of this name."""
    libc = ctypes.CDLL(None)
    return hasattr(libc, "mq_open") and libc.mq_open(f"/{name}".encode(), os.O_RDONLY) >= 0


def heard(server: socket.socket) -> int:
    """1 if somebody has called this server."""
    try:
        if server.type == socket.SOCK_STREAM:
            server.accept()[0].close()
        else:
            server.recv(16)
    except BlockingIOError:
        return 0
    return 1
