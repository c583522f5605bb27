"""Folders that processes share: entries that appear complete or not at all, files kept by content, and small facts.

The oldest entries go when a folder is full. All such folders together have a limit too, `KERNELWRIGHT_CACHE_GIB`: the
longest unused of all go first. Kept files are copied in, and copied out again only where every file is unchanged. The
maker of a folder writes to it under another user, or has ended; nobody but the judge ever sees what is kept.
"""

import contextlib
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
from typing import Any, ClassVar, NamedTuple

LOG = logging.getLogger(__name__)


def write_atomically(path: Path, text: str, mode: int | None = None) -> None:
    """Replace the file's text, in UTF-8; on disk when this returns. Raises `OSError` and leaves no scrap behind."""
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
"""Parts that an entry's name below the root of all caches has at most."""
FULL_BYTES = 16 * 2**20
FORGOTTEN_S = 3600
"""An unfinished entry older than this was left by a process that died."""


def cache_root() -> Path:
    """Return the folder of everything that can be made again: `KERNELWRIGHT_CACHE`, or one in the user's cache."""
    if given := os.environ.get(VARIABLE):
        return Path(given).absolute()
    above = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")  # noqa: PTH111 - may have no account
    return Path(above).absolute() / "kernelwright"


def state_root() -> Path:
    """Return the folder of what cannot be made again, as accepted jobs: one in the user's state."""
    above = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")  # noqa: PTH111 - as above
    return Path(above).absolute() / "kernelwright"


def limit_bytes() -> int:
    """Return what all that is kept may take on disk together; a limit that is not a number is the usual one."""
    given = _given_limit()
    return int((LIMIT_GIB if given is None else given) * 2**30)


def limit_fault() -> str:
    """Return what is wrong with the limit that was set; empty where nothing is."""
    if _given_limit() is not None:
        return ""
    return f"{LIMIT_VARIABLE} is {os.environ[LIMIT_VARIABLE]!r}, which is no number of GiB, so {LIMIT_GIB} are kept"


def _given_limit() -> float | None:
    try:
        given = float(os.environ.get(LIMIT_VARIABLE, LIMIT_GIB))
    except ValueError:
        return None
    return given if 0 <= given < float("inf") else None


def all_entries() -> "Cache":
    return Cache(cache_root(), limit_bytes(), depth=None)


def is_writable(root: Path) -> bool:
    """Whether something can be put below this folder, which need not be there yet; nothing is created."""
    there = _nearest(root)
    return there.is_dir() and os.access(there, os.W_OK | os.X_OK)


def is_full(root: Path) -> bool:
    """Whether the disk of this folder, which need not be there yet, has too little room for a build or two."""
    return shutil.disk_usage(_nearest(root)).free < FULL_BYTES


def _nearest(path: Path) -> Path:
    return next(above for above in (path, *path.parents) if is_there(above))


def is_there(path: Path) -> bool:
    """False too where a folder above is closed to this user, as another's home is; `Path` raises there."""
    return os.path.exists(path)  # noqa: PTH110


class Cache:
    """Entries that are folders below `root`, each with a file `entry.json`; a use renews an entry's date."""

    def __init__(self, root: Path, limit_bytes: int, depth: int | None = 1) -> None:
        """Entries' names have `depth` parts, or any number of them where it is None."""
        self.root = root
        self.limit_bytes = limit_bytes
        self._depths = range(1, DEEPEST + 1) if depth is None else (depth,)

    @contextlib.contextmanager
    def making(self, name: str) -> Iterator[Path]:
        """Yield a fresh folder that becomes the entry `name` when the block ends well. Raises `OSError`."""
        final = self.root / name
        final.parent.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=UNFINISHED, dir=self.root))
        try:
            yield folder
            folder.chmod(0o755)
            # Fails where another process was quicker, whose entry is as good.
            with contextlib.suppress(OSError):
                folder.rename(final)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        self.trim(keep=final)

    def use(self, name: str) -> Path | None:
        """Return the entry's folder, renewed; None where there is none."""
        folder = self.root / name
        try:
            os.utime(folder)
        except OSError:
            return folder if is_there(folder) else None
        return folder

    def entries(self) -> list[Path]:
        """Return all entries, the longest unused first."""
        found = []
        # `os.walk` passes over what other processes remove meanwhile; `Path.glob` raises there.
        for above, folders, files in os.walk(self.root):
            path = Path(above)
            depth = len(path.relative_to(self.root).parts)
            is_entry = MARK in files and depth in self._depths
            if is_entry:
                found.append(path)
            # Neither what is being made nor a file of that name within an entry.
            goes_on = not is_entry and depth < max(self._depths)
            folders[:] = [name for name in folders if not name.startswith(".")] if goes_on else []
        return sorted(found, key=_date)

    def size_bytes(self) -> int:
        return sum(map(_size, self.entries()))

    def trim(self, keep: Path | None = None) -> None:
        """Remove the longest unused entries until the rest fits, and what dead processes left."""
        _, folders, _ = next(os.walk(self.root), ("", [], []))
        for path in (self.root / name for name in folders if name.startswith(UNFINISHED)):
            if time.time() - _date(path) > FORGOTTEN_S:
                LOG.info("%s is removed: whoever made it ended before it was whole", path)
                shutil.rmtree(path, ignore_errors=True)
        sizes = {path: _size(path) for path in self.entries()}
        total = sum(sizes.values())
        for path, size in sizes.items():
            if total <= self.limit_bytes:
                return
            if path != keep:
                LOG.info(
                    "%s is removed as the longest unused: %s holds more than %d bytes",
                    path,
                    self.root,
                    self.limit_bytes,
                )
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
"""The folder within an entry, beside the digests of its files."""
CHUNK_BYTES = 2**20
READING = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class Bounds(NamedTuple):
    """A folder above any of these is not kept."""

    bytes: int
    files: int
    depth: int


class FolderStore(Cache):
    """Kept folders. Nothing raises for what is on disk: a folder that cannot be kept or read is simply made again."""

    def __init__(self, kind: str, limit_bytes: int, bounds: Bounds) -> None:
        """`kind` is the folder's name in the cache of ours, `limit_bytes` what all entries together may take."""
        super().__init__(cache_root() / kind, limit_bytes)
        self._bounds = bounds

    def keep(self, key: str, folder: Path) -> bool:
        """Copy a folder in, unless there is one under this key; nobody may write to it meanwhile.

        False where it is not fit to be kept: it holds links, devices or sockets, or too much.
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
        all_entries().trim(keep=self.root / key)
        return self.use(key) is not None

    def restore(self, key: str, folder: Path) -> bool:
        """Fill an empty folder, if there is one under this key with every file as it was; else leave it empty."""
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
        """Remove the entry under this key; a reader at this moment finds it incomplete, and does without."""
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
    """Copy a tree of plain files, readable for all; their digests by relative path. Follows no link."""
    target.mkdir(exist_ok=True)
    digests: dict[str, str] = {}
    left = bounds.bytes
    for path in _files(source, bounds.depth):
        name = str(path.relative_to(source))
        to = target / name
        to.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        fd = os.open(path, READING)
        with open(fd, "rb") as file:
            facts = os.fstat(fd)
            left -= facts.st_size
            if not stat.S_ISREG(facts.st_mode) or left < 0 or len(digests) >= bounds.files:
                raise _Unfit(f"it is too large, or {name} is no plain file")
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
"""Part of every name: a change in what is kept makes all older files unseen."""

Key = Mapping[str, Any]


class Store:
    """Facts of one kind, JSON files below a folder, named by keys. Readable files of another key, or broken ones, are
    absent.

    A key names everything that the value depends on (device, versions, problem digest); another key is another file, so
    nothing ever goes stale. Losing the folder costs only time.
    """

    _unwritten: ClassVar[dict[Path, str]] = {}
    """What this process could not put on disk."""

    def __init__(self, kind: str, folder: Path | None = None) -> None:
        self._folder = (folder or cache_root()) / kind

    def get(self, key: Key) -> Any:
        path = self._path(key)
        text = self._unwritten.get(path) or _text(path)
        entry = _entry(text)
        if entry and entry["key"] == _plain(key):
            return entry["value"]
        if text:
            LOG.info("%s counts as absent: it is not what was put there", path)
        return None

    def items(self) -> list[tuple[Any, Any]]:
        found = [(path, _entry(_text(path))) for path in self._files()]
        return [(entry["key"], entry["value"]) for path, entry in found if entry and self._path(entry["key"]) == path]

    def _files(self) -> list[Path]:
        """List the files; none where the folder cannot be read, as one that another user has left."""
        try:
            names = os.listdir(self._folder)  # noqa: PTH208 - a pattern of `Path` asks first, and raises elsewhere
        except OSError:
            return []
        return [self._folder / name for name in sorted(names) if name.endswith(".json") and not name.startswith(".")]

    def put(self, key: Key, value: Any) -> None:
        """Keep a value of JSON's types. Readers see the old file or the new one whole.

        Where nothing can be written it is kept for this process: on a full disk nothing is measured for every verdict.
        """
        path = self._path(key)
        text = json.dumps({"key": _plain(key), "value": value}, indent=1)
        self._unwritten[path] = text
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, text)
            self._unwritten.pop(path, None)
        except OSError as error:
            LOG.info("%s can not be written, and is kept for this process alone: %s", path, error)

    def _path(self, key: Key) -> Path:
        text = json.dumps([FORMAT, _plain(key)], sort_keys=True)
        return self._folder / f"{hashlib.sha256(text.encode()).hexdigest()}.json"


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError):
        return ""


def _entry(text: str) -> dict[str, Any] | None:
    """Parse a file of ours; None for any other."""
    try:
        entry = json.loads(text)
    except ValueError:
        return None
    is_ours = isinstance(entry, dict) and entry.keys() == {"key", "value"} and isinstance(entry["key"], dict)
    return entry if is_ours else None


def _plain(key: Key) -> Any:
    return json.loads(json.dumps(dict(key), sort_keys=True))


# Keys of facts. What they depend on imports much, and most users of this module keep no facts.


def _judge_version() -> int:
    from kernelwright.sandbox.verdict.judge_version import JUDGE_VERSION

    return JUDGE_VERSION


def plan_key(problem_digest: str) -> dict[str, Any]:
    """Return the key of a problem's need of memory: the problem, and torch's operators."""
    from kernelwright.sandbox.machine import versions

    return {"problem": problem_digest, "torch": versions()["torch"]}


def work_key(problem_digest: str) -> dict[str, Any]:
    """Return the key of a problem's necessary work: the problem, torch's operators, and how the judge counts them."""
    return plan_key(problem_digest) | {"judge": _judge_version()}


def status_key(problem_digest: str, device: str) -> dict[str, Any]:
    """Return the key of a problem's status: the problem, the device, torch, and the judge's rules of correctness."""
    return work_key(problem_digest) | {"device": device}


def baseline_key(problem_digest: str, device: str, versions: Mapping[str, str], baseline: str) -> dict[str, Any]:
    """Return the key of a baseline's time: problem, device with its driver, all versions, and how it is timed.

    `baseline` is `eager` or the mode of torch.compile. A kept time is for tables and for choosing the better mode; a
    speedup is always taken from pairs that were measured together.
    """
    facts = {"problem": problem_digest, "device": device, "versions": dict(versions), "baseline": baseline}
    return facts | {"judge": _judge_version()}
