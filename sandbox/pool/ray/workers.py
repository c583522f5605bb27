"""What runs in the processes of a Ray cluster: a worker for each device, and builds. Each is a judge.

Nothing of a candidate runs here, nor is anything unpickled that a candidate made: questions and answers are JSON, a
build is bytes. Ray is imported by whoever starts these.
"""

import atexit
import importlib
import io
import json
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernelwright.sandbox.build import BUILD_BYTES, BUILD_FILES, BuildStore
from kernelwright.sandbox.jail.zygote import become_a_judge, rest_between_loops
from kernelwright.sandbox.machine import processor_name
from kernelwright.sandbox.pool.devices import WorkerOptions, device_at, is_on_gpu, own_cores, shared_cores, split
from kernelwright.sandbox.pool.protocol import Question
from kernelwright.sandbox.verdict.judge_version import own_versions
from kernelwright.sandbox.workfolder import HeldFolder

if TYPE_CHECKING:
    from kernelwright.sandbox.pool.judges import Worker

ROOM_BYTES = 2**20
"""What the archive may add to its files."""


def pack(digest: str) -> bytes | None:
    """The build of that digest out of this machine's store; None where it is not there, or not as it was kept."""
    with HeldFolder("parcel") as folder:
        if not BuildStore().restore(digest, folder):
            return None
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w:gz", compresslevel=1) as archive:
            archive.add(folder, arcname=".", recursive=True)
        return packed.getvalue()


def unpack(digest: str, packed: bytes) -> bool:
    """Keep a packed build in this machine's store, unless it is there; whether it is there now.

    The bytes come from a machine that judges for us, and their content is a candidate's: nothing but plain files below
    the archive's own root is taken, and no more than the store would keep.
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


_builders: dict[str, "Worker"] = {}
"""The builder of this process by its settings; Ray has processes run one build after the other."""


class DeviceWorker:
    """The supervisor of one device: an actor, so that one question is answered after the other."""

    def __init__(self, chosen: dict[str, Any], counts: dict[str, int], kinds: list[str]) -> None:
        """`counts`: devices by node; `kinds`: declared ones by ordinal, empty for what is there."""
        rest_between_loops()  # a GPU's name, which the order holds, is asked of torch
        context = importlib.import_module("ray").get_runtime_context()
        node, ids = context.get_node_id(), context.get_accelerator_ids().get("GPU", [])
        ordinal = int(ids[0]) if ids and ids[0].isdigit() else 0
        gpu, count = is_on_gpu(chosen), counts.get(node, 1)
        cores = (shared_cores if gpu else split)(own_cores(), count)[ordinal]
        kind = kinds[ordinal % len(kinds)] if kinds else _cuda_name() if gpu else processor_name()
        self.device = device_at(ordinal, kind, chosen, cores, node[:12])
        order = WorkerOptions(chosen=chosen, device=self.device, alone=count == 1 and not gpu)
        order.settle()
        self._worker = _judging(order)

    def describe(self) -> tuple[str, str]:
        """The device and its versions as JSON, and the full name of its node."""
        told = own_versions() | {"device": self.device.model_dump(mode="json")}
        return json.dumps(told), importlib.import_module("ray").get_runtime_context().get_node_id()

    def answer(self, question: str, digest: str, packed: list[Any]) -> str | None:
        """The answer as JSON; None where the build is nowhere to be had. `packed` is a reference to its bytes."""
        if packed and not is_kept(digest):
            ray = importlib.import_module("ray")
            try:
                bytes_ = ray.get(packed[0])
            except ray.exceptions.RayError:
                return None
            if bytes_ is not None:
                unpack(digest, bytes_)
        return self._worker.answer(Question.model_validate_json(question)).model_dump_json(exclude_none=True)

    def build(self, question: str) -> tuple[str, bytes | None]:
        return _built(self._worker, question)

    def close(self) -> None:
        self._worker.close()


def build(chosen: dict[str, Any], question: str) -> tuple[str, bytes | None]:
    key = WorkerOptions(chosen=chosen).model_dump_json()
    if key not in _builders:
        _builders[key] = _judging(WorkerOptions(chosen=chosen))
        atexit.register(_builders[key].close)
    return _built(_builders[key], question)


def _judging(order: WorkerOptions) -> "Worker":
    become_a_judge(order.settings().threads)
    from kernelwright.sandbox.pool.judges import Worker  # torch comes with it

    return Worker(order)


def _built(worker: "Worker", question: str) -> tuple[str, bytes | None]:
    answer = worker.answer(Question.model_validate_json(question))
    packed = pack(answer.product) if answer.product else None
    return answer.model_dump_json(exclude_none=True), packed


def _cuda_name() -> str:
    import torch

    return str(torch.cuda.get_device_name(0))
