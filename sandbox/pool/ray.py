"""The executor of a Ray cluster: an actor for each device, and build tasks with a resource of their own.

Ray retries nothing: if it ran an actor's task again, that would be a second timing. The
`Dispatcher` runs again what a lost worker had begun. Results come back to the driver alone. A build goes from its
builder to a device through the object store, under its digest.

No candidate's code runs in a process of the cluster, and nothing that a candidate made is unpickled: questions and
answers are JSON, a build is bytes.
"""

import asyncio
import atexit
import contextlib
import importlib
import io
import json
import logging
import os
import secrets
import shutil
import socket
import stat
import sys
import tarfile
import tempfile
from collections import Counter
from collections.abc import Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernelwright.problems.problem import LibraryMissing
from kernelwright.sandbox.build import BUILD_BYTES, BUILD_FILES, BuildStore
from kernelwright.sandbox.jail.zygote import prepare_judge, set_passive_waiting
from kernelwright.sandbox.machine import processor_name
from kernelwright.sandbox.pool.executor import (
    Answer,
    Device,
    Executor,
    ExecutorError,
    Lost,
    Product,
    ProductGone,
    Question,
    Stage,
    Work,
    device_at,
    own_cores,
    settings_on,
    shared_cores,
    split,
)
from kernelwright.sandbox.storage import cache_root
from kernelwright.sandbox.verdict.judge_version import other_version, own_versions
from kernelwright.sandbox.verdict.settings import JudgeSettings
from kernelwright.sandbox.workfolder import HeldFolder

if TYPE_CHECKING:
    from kernelwright.sandbox.pool.judges import Judges

MODE, TOKEN, TOKEN_PATH = "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"
OPEN_TO_OTHERS = stat.S_IRWXG | stat.S_IRWXO
KNOCKING_S = 10.0
SESSIONS = "kwray-"
LOOPBACK = "127.0.0.1"
CLUSTERS = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
"""Whether a machine may be part of a cluster of several. Where it may, Ray listens on every address, whatever its
options; where it may not, on the loopback alone. Ray sets it by itself on two systems, and reads it on every one."""


def require_listener(address: str) -> None:
    """Raise `ExecutorError` where nothing listens at HOST:PORT: Ray would try for minutes before it says so."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), KNOCKING_S).close()
    except OSError as error:
        why = error.strerror or error
        raise ExecutorError(f"nothing answers at {address} ({why}); give the address of a Ray cluster's head") from None


def own_token(environment: Mapping[str, str]) -> Path | None:
    """Return the token of clusters that this user's programs start for themselves; make it where there is none yet.

    It is one for all of them, since a process can use only the first one that it has read. Raises `ExecutorError` where
    the user named an unusable file.
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
    """Write a new token that only this user can read; do nothing where another process was faster."""
    whole = path.with_name(f".{path.name}-{secrets.token_hex(8)}")
    fd = os.open(whole, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with open(fd, "w", encoding="ascii") as file:
        file.write(secrets.token_hex(32))
    with contextlib.suppress(FileExistsError):
        os.link(whole, path)
    whole.unlink()


def found_token(environment: Mapping[str, str], address: str) -> Path | None:
    """Return the file with the token of a running cluster; None where the environment holds the token itself.

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
    """Return HOST:PORT of a cluster's head. Raises `ExecutorError` for anything else."""
    host, _, port = address.rpartition(":")
    if "://" in address or not host or not port.isdigit():
        raise ExecutorError(f"--address is {address!r}; give HOST:PORT of the cluster's head, such as 10.0.0.5:6379")
    return address


def wants_token(environment: Mapping[str, str]) -> bool:
    """Return whether Ray has to ask for a token: always, unless the user turned that off by name."""
    return environment.get(MODE, "token") == "token"


def require_token(environment: MutableMapping[str, str], token: Path | None) -> None:
    """Have Ray ask for the token, and show it. Ray reads this once, when it is imported.

    Raises `ExecutorError` where that has happened without it.
    """
    if "ray" in sys.modules and environment.get(MODE) != "token":
        raise ExecutorError("Ray was imported without token authentication; set RAY_AUTH_MODE=token first")
    environment[MODE] = "token"
    if token is not None:
        environment[TOKEN_PATH] = str(token)


def session_folder() -> Path:
    """Make a private folder for a cluster's sessions; remove those of drivers that were killed.

    Its path is short, for Ray makes sockets deep in it.
    """
    for left in Path(tempfile.gettempdir()).glob(f"{SESSIONS}[0-9]*-*"):
        pid = left.name.removeprefix(SESSIONS).partition("-")[0]
        with contextlib.suppress(FileNotFoundError):  # another driver was faster
            if left.stat().st_uid == os.getuid() and not Path(f"/proc/{pid}").exists():
                shutil.rmtree(left, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix=f"{SESSIONS}{os.getpid()}-"))


ROOM_BYTES = 2**20
"""Bytes that an archive may add to its files."""
BUILD = "build"
"""The resource that build pools offer: `ray start --resources '{"build": 8}'`."""
BUILDS = "builds"
"""The threads of a device's worker that build, where the build needs its device."""
OBJECT_STORE_BYTES = 200_000_000
"""For a cluster of this machine alone; a build takes a few megabytes of it until it is judged."""
START_S = 180.0
ENDING_S = 20.0


def judges_on(settings: JudgeSettings) -> "Judges":
    """Make this process a judge, before torch is imported; return what judges in it."""
    prepare_judge(settings.threads)
    from kernelwright.sandbox.pool.judges import Judges

    return Judges(settings)


class DeviceWorker:
    """The worker of one device of a Ray cluster: an actor, which answers one question after the other."""

    def __init__(self, chosen: str, counts: dict[str, int], kinds: list[str]) -> None:
        """`chosen`: settings as JSON; `counts`: devices by node; `kinds`: declared ones by ordinal, or none."""
        set_passive_waiting()  # a GPU's name is asked of torch
        settings = JudgeSettings.model_validate_json(chosen)
        context = importlib.import_module("ray").get_runtime_context()
        node, ids = context.get_node_id(), context.get_accelerator_ids().get("GPU", [])
        ordinal = int(ids[0]) if ids and ids[0].isdigit() else 0
        count = counts.get(node, 1)
        cores = (shared_cores if settings.gpu else split)(own_cores(), count)[ordinal]
        if kinds:
            kind = kinds[ordinal % len(kinds)]
        elif settings.gpu:
            import torch

            kind = str(torch.cuda.get_device_name(0))
        else:
            kind = processor_name()
        self.device = device_at(ordinal, kind, settings, cores, node[:12])
        if settings.gpu or count > 1:
            os.sched_setaffinity(0, cores)
        self._judges = judges_on(settings_on(settings, cores))

    def describe(self) -> tuple[str, str]:
        """Return the device and its versions as JSON, and the full name of its node."""
        found = own_versions() | {"device": self.device.model_dump(mode="json")}
        return json.dumps(found), importlib.import_module("ray").get_runtime_context().get_node_id()

    def answer(self, question: str, digest: str, packed: list[Any]) -> str | None:
        """Return the answer as JSON; None where the build is not available. `packed` is a reference to its bytes."""
        if packed and not is_kept(digest):
            ray = importlib.import_module("ray")
            try:
                bytes_ = ray.get(packed[0])
            except ray.exceptions.RayError:
                return None
            if bytes_ is not None:
                unpack(digest, bytes_)
        return self._judges.answer(Question.model_validate_json(question)).model_dump_json(exclude_none=True)

    def build(self, question: str) -> tuple[str, bytes | None]:
        return _built(self._judges, question)

    def close(self) -> None:
        self._judges.close()


_builders: dict[str, "Judges"] = {}
"""The builder of this process by its settings; Ray has processes run one build after the other."""


def build(chosen: str, question: str) -> tuple[str, bytes | None]:
    """Build on Ray; return the answer, and the build where there is one."""
    if chosen not in _builders:
        _builders[chosen] = judges_on(settings_on(JudgeSettings.model_validate_json(chosen), own_cores()))
        atexit.register(_builders[chosen].close)
    return _built(_builders[chosen], question)


def _built(judges: "Judges", question: str) -> tuple[str, bytes | None]:
    answer = judges.answer(Question.model_validate_json(question))
    packed = pack(answer.product) if answer.product else None
    return answer.model_dump_json(exclude_none=True), packed


def pack(digest: str) -> bytes | None:
    """Return the build of that digest in this machine's store; None where it is not there, or not as it was kept."""
    with HeldFolder("parcel") as folder:
        if not BuildStore().restore(digest, folder):
            return None
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w:gz", compresslevel=1) as archive:
            archive.add(folder, arcname=".", recursive=True)
        return packed.getvalue()


def unpack(digest: str, packed: bytes) -> bool:
    """Keep a packed build in this machine's store, unless it is there; return whether it is there now.

    The bytes come from a machine that judges for us, and their content is a candidate's: only plain files below the
    archive's own root are taken, and no more than the store would keep.
    """
    with HeldFolder("parcel") as folder:
        try:
            _extract(packed, folder)
        except (tarfile.TarError, OSError, EOFError):
            return False
        return BuildStore().keep(digest, folder)


def _extract(packed: bytes, folder: Path) -> None:
    left = BUILD_BYTES + ROOM_BYTES
    with tarfile.open(fileobj=io.BytesIO(packed), mode="r:gz") as archive:
        for number, member in enumerate(archive):
            left -= member.size
            if left < 0 or number > 2 * BUILD_FILES:
                raise tarfile.TarError("larger than any build that is kept")
            if not (member.isreg() or member.isdir()):
                raise tarfile.TarError("something else than files and folders")
            archive.extract(member, folder, filter="data")


def is_kept(digest: str) -> bool:
    return bool(digest) and BuildStore().use(digest) is not None


class RayExecutor(Executor):
    def __init__(
        self,
        settings: JudgeSettings,
        address: str | None,
        builders: int | None,
        devices: int | Sequence[str] | None = None,
    ) -> None:
        """`devices`: for a cluster of this machine alone, how many to declare, or their kinds."""
        self._settings, self._address = settings, address and checked_address(address)
        self._chosen = settings.model_dump_json(exclude_unset=True)
        self._declared = [] if devices is None or isinstance(devices, int) else list(devices)
        self._count = devices if devices is None or isinstance(devices, int) else len(devices)
        self._asked_builders = builders
        self.builders = builders or len(own_cores())
        self.alternates = not settings.gpu
        self._ray: Any = None
        self._folder: Path | None = None
        self._actors: dict[str, Any] = {}
        self._places: dict[str, dict[str, Any]] = {}
        self._kinds: dict[str, str] = {}
        self._lost: dict[str, Any] = {}
        self._building: Counter[str] = Counter()
        self._replacing = asyncio.Lock()
        self._counts: dict[str, int] = {}

    async def open(self) -> tuple[Device, ...]:
        """Return the devices that are free now, each with its actor. Raises `ExecutorError`."""
        self._ray = self._connect()  # in the main thread, where Ray can have its signal handlers
        resources = self._ray.cluster_resources()
        if self._address is not None:
            offered = int(resources.get(BUILD, resources.get("CPU", 1)))
            self.builders = min(self._asked_builders or offered, offered)
        # A build needs a place in a build pool; a core, where no node offers such places.
        share = {"num_cpus": 0, "resources": {BUILD: 1}} if BUILD in resources else {"num_cpus": 1}
        self._build = self._ray.remote(build).options(num_returns=2, max_retries=0, **share)
        places = self._device_places()
        self._builds_a_device = -(-self.builders // max(1, len(places)))
        started = [(self._start(place), place) for place in places]
        devices = await asyncio.gather(*(self._described(actor, place) for actor, place in started))
        found = tuple(device for device in devices if device is not None)
        if not found:
            raise ExecutorError("no device of the Ray cluster is available; see `ray status` for what is free")
        return found

    def _connect(self) -> Any:
        if self._address is not None:
            require_listener(self._address)
        if wants_token(os.environ):
            token = own_token(os.environ) if self._address is None else found_token(os.environ, self._address)
            require_token(os.environ, token)
        if self._address is None:
            os.environ[CLUSTERS] = "0"  # read once, when Ray is imported
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        try:
            ray: Any = importlib.import_module("ray")
        except ImportError:
            raise LibraryMissing.of_extra("--executor ray", "Ray", "ray") from None
        options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
        if self._address is None:
            self._folder = session_folder()
            options |= self._own_cluster()
        namespace = f"kernelwright-{secrets.token_hex(4)}"
        try:
            ray.init(address=self._address or "local", namespace=namespace, **options)
        except (ConnectionError, RuntimeError, ValueError) as error:
            where = self._address or "this machine"
            raise ExecutorError(f"no Ray cluster can be used at {where} ({_line(error)}); check `ray status`") from None
        return ray

    def _own_cluster(self) -> dict[str, Any]:
        return {
            "num_cpus": self.builders,
            "num_gpus": self._count if self._count is not None else None if self._settings.gpu else 1,
            "resources": {BUILD: self.builders},
            "include_dashboard": False,
            "object_store_memory": OBJECT_STORE_BYTES,
            "_temp_dir": str(self._folder),
            "_node_ip_address": LOOPBACK,
        }

    def _device_places(self) -> list[dict[str, Any]]:
        """Return what to ask of Ray for each device: a GPU; where there is none and none is needed, a complete node."""
        ray = self._ray
        free = int(ray.available_resources().get("GPU", 0))
        nodes = [node for node in ray.nodes() if node["Alive"]]
        self._counts = {node["NodeID"]: max(1, int(node["Resources"].get("GPU", 0))) for node in nodes}
        if free or self._settings.gpu:
            return [{"num_gpus": 1, "num_cpus": 0}] * free
        return [{"num_cpus": 0} | self._on_node(node["NodeID"]) for node in nodes]

    def _on_node(self, node: str) -> dict[str, Any]:
        strategies: Any = importlib.import_module("ray.util.scheduling_strategies")
        return {"scheduling_strategy": strategies.NodeAffinitySchedulingStrategy(node, soft=False)}

    def _start(self, place: dict[str, Any]) -> Any:
        groups = {"concurrency_groups": {BUILDS: self._builds_a_device}} if self._settings.gpu else {}
        kind = self._ray.remote(max_restarts=0, max_task_retries=0, **groups, **place)(DeviceWorker)
        return kind.remote(self._chosen, self._counts, self._declared)

    async def _described(self, actor: Any, place: dict[str, Any]) -> Device | None:
        """Return the actor's device; None, and no actor, where it does not start."""
        try:
            said, node = await asyncio.wait_for(actor.describe.remote(), START_S)
        except (TimeoutError, self._ray.exceptions.RayError):
            self._ray.kill(actor)
            return None
        if (differs := other_version(json.loads(said))) is not None:
            raise ExecutorError(f"a node of the Ray cluster has another version ({differs}); install this one there")
        device = Device.model_validate(json.loads(said)["device"])
        self._actors[device.name] = actor
        self._places[device.name] = place | self._on_node(node)
        self._kinds.setdefault(device.name, device.kind)
        return device

    async def build(self, work: Work) -> Answer | Product:
        question = Question(stage="build", work=work).model_dump_json()
        if not self._settings.gpu:
            said, packed = self._build.remote(self._chosen, question)
            answer = Answer.model_validate_json(await self._result(said))
        else:
            answer, packed = await self._build_beside(question)
        return answer if answer.product is None else Product(answer.product, packed)

    async def _build_beside(self, question: str) -> tuple[Answer, Any]:
        """Build in the device's worker that has the fewest builds: a build needs the device's references."""
        name = min(self._actors, key=lambda name: self._building[name])
        actor = self._actors[name]
        self._building[name] += 1
        try:
            said, packed = actor.build.options(concurrency_group=BUILDS, num_returns=2).remote(question)
            return Answer.model_validate_json(await self._result(said)), packed
        except Lost:
            await self._replace(name, actor)
            raise
        finally:
            self._building[name] -= 1

    async def run(self, stage: Stage, work: Work, product: Product, device: Device) -> Answer:
        question = Question(stage=stage, work=work).model_dump_json()
        packed = [product.place] if product.place is not None else []
        actor = self._actors[device.name]
        try:
            said = await self._result(actor.answer.remote(question, product.digest, packed))
        except Lost:
            self._lost[device.name] = actor
            raise
        if said is None:
            raise ProductGone("its build was lost with the machine that made it")
        return Answer.model_validate_json(said)

    async def _result(self, said: Any) -> Any:
        errors = self._ray.exceptions
        try:
            return await said
        except errors.RayTaskError:
            raise
        except errors.RayError as error:
            raise Lost(f"Ray says: {_line(error)}") from None

    async def revive(self, device: Device) -> bool:
        """Start a new actor on the same node; return False where it fails, or has another kind of device."""
        return await self._replace(device.name, self._lost.pop(device.name))

    async def _replace(self, name: str, lost: Any) -> bool:
        """Replace an actor that was lost, once, whichever call meets it first."""
        async with self._replacing:
            if self._actors.get(name) is not lost:
                return name in self._actors
            self._ray.kill(self._actors.pop(name))
            actor = self._start(self._places[name])
            found = await self._described(actor, self._places[name])
            if found is None:
                return False
            self._actors[name] = actor
            return found.kind == self._kinds[name]

    @property
    def gcs_address(self) -> str:
        return str(self._ray.get_runtime_context().gcs_address)

    async def close(self) -> None:
        if self._ray is not None:
            ends = [actor.close.remote() for actor in self._actors.values()]
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(asyncio.gather(*ends, return_exceptions=True), ENDING_S)
            await asyncio.to_thread(self._ray.shutdown)
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)


def _line(error: BaseException) -> str:
    """Return the first line of an error's text, which may be a page."""
    return (str(error).strip() or type(error).__name__).partition("\n")[0]
