"""Storage that processes share: caches of folders whose entries appear complete or not at all, and small facts.

The longest unused entries are removed when a cache is full; `KERNELWRIGHT_CACHE_GIB` limits all caches together. Files
are copied in, and copied out only where every file is unchanged. Only the judge can read stored files.
"""

import contextlib
import errno
import hashlib
import json
import logging
import os
import secrets
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, ClassVar, NamedTuple

LOG = logging.getLogger(__name__)


def write_atomically(path: Path, text: str, mode: int | None = None) -> None:
    """Replace the file's text, in UTF-8, in a folder made where missing; on disk on return. Raises `OSError`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    scrap = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    try:
        with open(scrap, "w", encoding="utf-8", newline="") as file:
            file.write(text)
            file.flush()
            if mode is not None:
                os.fchmod(file.fileno(), mode)
            os.fsync(file.fileno())
        scrap.replace(path)
    except BaseException:
        scrap.unlink(missing_ok=True)
        raise


VARIABLE = "KERNELWRIGHT_CACHE"
UNFINISHED = ".making-"
MARK = "entry.json"
LIMIT_VARIABLE = "KERNELWRIGHT_CACHE_GIB"
LIMIT_GIB = 2.0
DEEPEST = 5
"""Most parts of an entry's name below the root of all caches."""
FULL_BYTES = 16 * 2**20
TRIMMED, TRIM_S = ".trimmed", 30.0  # the file whose date is that of the last trim; the least time to the next
FORGOTTEN_S = 3600
"""An older unfinished entry was left by a process that died."""


def cache_root() -> Path:
    """Return the folder of caches: `KERNELWRIGHT_CACHE`, or one in the user's cache."""
    if given := os.environ.get(VARIABLE):
        return Path(given).absolute()
    above = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")  # noqa: PTH111 - may have no account
    return Path(above).absolute() / "kernelwright"


def state_root() -> Path:
    """Return the folder of lasting state, such as accepted jobs, in the user's state."""
    above = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")  # noqa: PTH111 - as above
    return Path(above).absolute() / "kernelwright"


def limit_bytes() -> int:
    given = _given_limit()
    return int((LIMIT_GIB if given is None else given) * 2**30)


def limit_fault() -> str:
    if _given_limit() is not None:
        return ""
    return f"{LIMIT_VARIABLE} is {os.environ[LIMIT_VARIABLE]!r}, which is not a number of GiB, so {LIMIT_GIB} are used"


def _given_limit() -> float | None:
    try:
        given = float(os.environ.get(LIMIT_VARIABLE, LIMIT_GIB))
    except ValueError:
        return None
    return given if 0 <= given < float("inf") else None


def all_entries() -> "Cache":
    return Cache(cache_root(), limit_bytes(), depth=None)


def is_writable(root: Path) -> bool:
    """Check that something can be written below this folder, which need not exist; nothing is created."""
    there = _nearest(root)
    return there.is_dir() and os.access(there, os.W_OK | os.X_OK)


def is_full(root: Path) -> bool:
    """Check for too little space for a build or two on the disk of this folder, which need not exist."""
    return shutil.disk_usage(_nearest(root)).free < FULL_BYTES


def _nearest(path: Path) -> Path:
    return next(above for above in (path, *path.parents) if is_there(above))


def is_there(path: Path) -> bool:
    """Check existence; false too below a folder that is closed to this user, where `Path` raises."""
    return os.path.exists(path)  # noqa: PTH110


class Cache:
    """Folders below `root`, each with a file `entry.json` and the date of its last use."""

    def __init__(self, root: Path, limit_bytes: int, depth: int | None = 1) -> None:
        """Limit the size; names of entries have `depth` parts, or any number for None."""
        self.root = root
        self.limit_bytes = limit_bytes
        self._depths = range(1, DEEPEST + 1) if depth is None else (depth,)

    @contextlib.contextmanager
    def making(self, name: str) -> Iterator[Path]:
        """Yield a new folder that becomes the entry `name` when the block succeeds. Raises `OSError`."""
        final = self.root / name
        final.parent.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=UNFINISHED, dir=self.root))
        try:
            yield folder
            folder.chmod(0o755)
            # Fails where another process was faster, whose entry is equivalent.
            with contextlib.suppress(OSError):
                folder.rename(final)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        self.trim_at_times(keep=final)

    def use(self, name: str) -> Path | None:
        """Return the entry's folder and renew its date; None where it does not exist."""
        folder = self.root / name
        try:
            os.utime(folder)
        except OSError:
            return folder if is_there(folder) else None
        return folder

    def entries(self) -> list[Path]:
        """Return all entries, the longest unused first."""
        found = []
        # `os.walk` skips folders that other processes remove; `Path.glob` raises there.
        for above, folders, files in os.walk(self.root):
            path = Path(above)
            depth = len(path.relative_to(self.root).parts)
            is_entry = MARK in files and depth in self._depths
            if is_entry:
                found.append(path)
            # Skip unfinished entries, and files of that name within an entry.
            goes_on = not is_entry and depth < max(self._depths)
            folders[:] = [name for name in folders if not name.startswith(".")] if goes_on else []
        return sorted(found, key=_date)

    def size_bytes(self) -> int:
        return sum(map(_size, self.entries()))

    def trim_at_times(self, keep: Path) -> None:
        """Trim unless any process did so less than `TRIM_S` ago, since it reads the size of every entry."""
        stamp = self.root / TRIMMED
        if not 0 <= time.time() - _date(stamp) < TRIM_S:
            with contextlib.suppress(OSError):  # a full disk
                stamp.touch()
            self.trim(keep)

    def trim(self, keep: Path | None = None) -> None:
        """Remove the longest unused entries until the rest fits, and old unfinished ones."""
        _, folders, _ = next(os.walk(self.root), ("", [], []))
        for path in (self.root / name for name in folders if name.startswith(UNFINISHED)):
            if time.time() - _date(path) > FORGOTTEN_S:
                LOG.info("%s is removed: its process ended before it was complete", path)
                shutil.rmtree(path, ignore_errors=True)
        sizes = {path: _size(path) for path in self.entries()}
        total = sum(sizes.values())
        for path, size in sizes.items():
            if total <= self.limit_bytes:
                return
            if path != keep:
                why = "%s is removed as the longest unused: %s holds more than %d bytes"
                LOG.info(why, path, self.root, self.limit_bytes)
                shutil.rmtree(path, ignore_errors=True)
                total -= size


def _date(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _size(folder: Path) -> int:
    total = 0
    for above, folders, files in os.walk(folder):
        for name in folders + files:
            with contextlib.suppress(OSError):
                total += Path(above, name).lstat().st_blocks * 512
    return total


CONTENT = "build"
"""The folder within an entry, next to the digests of its files."""
CHUNK_BYTES = 2**20


def open_read(path: str | Path) -> BinaryIO:
    """Open a file that a child may have written: follow no link, and wait for no pipe. Raises `OSError`."""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return open(fd, "rb")


class Bounds(NamedTuple):
    bytes: int
    files: int
    depth: int


class FolderStore(Cache):
    """A cache of folders of files. Folders that cannot be stored or read are made again; nothing raises."""

    def __init__(self, kind: str, limit_bytes: int, bounds: Bounds) -> None:
        """Use the folder `kind` below `cache_root`, for entries of `limit_bytes` together."""
        super().__init__(cache_root() / kind, limit_bytes)
        self._bounds = bounds

    def keep(self, key: str, folder: Path) -> bool:
        """Copy a folder in, unless there is one under this key; nothing may write to it meanwhile.

        False where it cannot be stored: it contains links, devices or sockets, or is too large.
        """
        if self.use(key) is not None:
            return True
        try:
            with self.making(key) as made:
                digests = _copy(folder, made / CONTENT, self._bounds)
                (made / MARK).write_text(json.dumps(digests, sort_keys=True))
        except (OSError, _Unfit) as error:
            LOG.info("%s is not kept in %s: %s", folder, self.root, error)
            return False
        all_entries().trim_at_times(keep=self.root / key)
        return self.use(key) is not None

    def restore(self, key: str, folder: Path) -> bool:
        """Fill an empty folder from the entry under this key, if all its files are unchanged; else leave it empty."""
        entry = self.use(key)
        if entry is None:
            return False
        try:
            wanted = json.loads((entry / MARK).read_text())
            if _copy(entry / CONTENT, folder, self._bounds) == wanted:
                return True
            why = "its files are not as they were"
        except (OSError, ValueError, _Unfit) as error:
            why = str(error)
        LOG.info("%s is thrown away: %s", entry, why)
        for path in folder.iterdir():
            with contextlib.suppress(OSError):
                shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        self.forget(key)
        return False

    def forget(self, key: str) -> None:
        """Remove the entry under this key; a concurrent reader finds it incomplete and ignores it."""
        shutil.rmtree(self.root / key, ignore_errors=True)

    def __len__(self) -> int:
        return len(self.entries())


def digest_of(facts: list[str]) -> str:
    """Compute a key of 64 hex digits for facts in this order."""
    parts = (fact.encode(errors="surrogatepass") for fact in facts)
    return hashlib.sha256(b"".join(len(part).to_bytes(8, "little") + part for part in parts)).hexdigest()


class _Unfit(Exception):
    """A folder with links, devices or sockets in it, or too large."""


def _copy(source: Path, target: Path, bounds: Bounds) -> dict[str, str]:
    """Copy a tree of plain files, readable for all; return their digests by relative path. Follows no link."""
    target.mkdir(exist_ok=True)
    digests: dict[str, str] = {}
    left = bounds.bytes
    for path in _files(source, bounds.depth):
        name = str(path.relative_to(source))
        to = target / name
        to.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        with open_read(path) as file:
            facts = os.fstat(file.fileno())
            left -= facts.st_size
            if not stat.S_ISREG(facts.st_mode) or left < 0 or len(digests) >= bounds.files:
                raise _Unfit(f"it is too large, or {name} is not a plain file")
            digest = hashlib.sha256()
            with to.open("xb") as copy:
                while chunk := file.read(CHUNK_BYTES):
                    digest.update(chunk)
                    copy.write(chunk)
        to.chmod(0o755 if facts.st_mode & 0o100 else 0o644)
        os.utime(to, ns=(facts.st_mtime_ns, facts.st_mtime_ns))
        digests[name] = digest.hexdigest()
    return digests


def _files(folder: Path, depth: int) -> Iterator[Path]:
    with os.scandir(folder) as entries:
        for entry in sorted(entries, key=lambda entry: entry.name):
            if entry.is_dir(follow_symlinks=False):
                if depth == 0:
                    raise _Unfit(f"{entry.path} lies too deep")
                yield from _files(Path(entry.path), depth - 1)
            elif entry.is_file(follow_symlinks=False):
                yield Path(entry.path)
            else:
                raise _Unfit(f"{entry.path} is neither a file nor a folder")


FORMAT = 1
"""Part of every name: another format ignores all older files."""

Key = Mapping[str, Any]


class Store:
    """Facts of one kind in JSON files named by keys. Broken files, and files of another key, count as absent.

    A key names everything that the value depends on (device, versions, problem digest), so no value becomes stale.
    Losing the folder costs only time.
    """

    _unwritten: ClassVar[dict[Path, str]] = {}
    """Files that this process could not write."""

    def __init__(self, kind: str, folder: Path | None = None) -> None:
        self._folder = (folder or cache_root()) / kind

    def get(self, key: Key) -> Any:
        path = self._path(key)
        text = self._unwritten.get(path) or _text(path)
        entry = _entry(text)
        if entry and entry["key"] == _plain(key):
            return entry["value"]
        if text:
            LOG.info("%s counts as absent: it is broken or of another key", path)
        return None

    def items(self) -> list[tuple[Any, Any]]:
        found = [(path, _entry(_text(path))) for path in self._files()]
        return [(entry["key"], entry["value"]) for path, entry in found if entry and self._path(entry["key"]) == path]

    def _files(self) -> list[Path]:
        """List the files; none where the folder cannot be read, as one of another user."""
        try:
            names = os.listdir(self._folder)  # noqa: PTH208 - a pattern of `Path` asks first, and raises elsewhere
        except OSError:
            return []
        return [self._folder / name for name in sorted(names) if name.endswith(".json") and not name.startswith(".")]

    def put(self, key: Key, value: Any) -> None:
        """Store a value of JSON's types. Readers see the old file or the new one, complete.

        A value that cannot be written is kept for this process, so that a full disk does not repeat measurements.
        """
        path = self._path(key)
        text = json.dumps({"key": _plain(key), "value": value}, indent=1)
        self._unwritten[path] = text
        try:
            write_atomically(path, text)
            self._unwritten.pop(path, None)
        except OSError as error:
            LOG.info("%s cannot be written, and is kept for this process alone: %s", path, error)

    def _path(self, key: Key) -> Path:
        text = json.dumps([FORMAT, _plain(key)], sort_keys=True)
        return self._folder / f"{hashlib.sha256(text.encode()).hexdigest()}.json"


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError):
        return ""


def _entry(text: str) -> dict[str, Any] | None:
    try:
        entry = json.loads(text)
    except ValueError:
        return None
    is_ours = isinstance(entry, dict) and entry.keys() == {"key", "value"} and isinstance(entry["key"], dict)
    return entry if is_ours else None


def _plain(key: Key) -> Any:
    return json.loads(json.dumps(dict(key), sort_keys=True))


# Keys of facts. They import much, which most users of this module do not need.


def _judge_version() -> int:
    from kernelwright.sandbox.verdict.judge_version import JUDGE_VERSION

    return JUDGE_VERSION


def plan_key(problem_digest: str) -> dict[str, Any]:
    from kernelwright.sandbox.machine import versions

    return {"problem": problem_digest, "torch": versions()["torch"]}


def work_key(problem_digest: str) -> dict[str, Any]:
    return plan_key(problem_digest) | {"judge": _judge_version()}


def status_key(problem_digest: str, device: str) -> dict[str, Any]:
    return work_key(problem_digest) | {"device": device}


def baseline_key(problem_digest: str, device: str, versions: Mapping[str, str], baseline: str) -> dict[str, Any]:
    """Return the key of a baseline's time: problem, device with its driver, all versions, and the baseline's form.

    `baseline` is `eager` or a mode of torch.compile. A stored time serves tables and the choice of the better mode; a
    speedup always comes from pairs that were measured together.
    """
    facts = {"problem": problem_digest, "device": device, "versions": dict(versions), "baseline": baseline}
    return facts | {"judge": _judge_version()}
