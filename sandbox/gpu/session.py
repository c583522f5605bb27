"""The judge's side of a worker on a GPU: inputs appear on a quiet device, outputs are looked at within the clock."""

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from sandbox.errors import MachineError
from sandbox.gpu import driver
from sandbox.gpu.buffers import Allocations, Glance, Lent, Shown, fetch
from sandbox.gpu.clocks import ClockSample
from sandbox.gpu.device import Device, Prepared
from sandbox.jail import Kind
from sandbox.peek import PeekError
from sandbox.sessions import Misbehaved, Refused, Session
from sandbox.settings import Settings
from sandbox.trees import is_sound
from sandbox.values import RawTensor, Values
from sandbox.workfolder import WorkFolder

DISTURBED_AT_LEAST, DISTURBED_SHARE = 3, 0.2
"""So often, and in such a share of the calls, the device must have been busy before it is the candidate's doing."""


class DeviceTimed(NamedTuple):
    """One call on the device."""

    output: Values
    milliseconds: float
    """On the judge's clock, from "go" until secret places of every output were seen: an upper bound nobody can fool."""
    device_ms: float | None
    """What the worker says that the device's events said. A hint."""
    prepared: Prepared
    clocks: ClockSample | None
    mapped_anew: bool
    """Whether an output lay in an allocation that was not seen before, which costs time within the clock."""


class GpuSession(Session):
    """A `Session` whose calls run on a device. Settings must have `gpu`."""

    def __init__(self, kind: Kind, folder: WorkFolder, settings: Settings, device: Device) -> None:
        super().__init__(kind, folder, settings)
        self._device = device
        self._inputs: Lent | None = None
        self._allocations = Allocations()
        self._outputs: tuple[Shown, ...] = ()
        self._calls = self._disturbed = 0
        self.copies_outputs = False
        """Whether every output is copied to where the judge can see it: the driver lets it map nothing of the child."""

    def to_device(self, precision: str) -> dict[str, Any]:
        """Move the model; tells torch's precision switches as the child reports them."""
        answer = self.ask({"op": "to device", "precision": precision}, self._settings.start_timeout_s)
        switches = answer.get("switches")
        return switches if isinstance(switches, dict) else {}

    def lend_device(self, values: Values) -> None:
        """Lend device memory for inputs of these sizes. The first time, before the candidate's source has run."""
        self._give_back()
        try:
            self._inputs = Lent(values.tensors, self._device.ordinal)
            self._device.calibrate(self._inputs)
        except driver.CudaError as error:
            raise MachineError(f"no device memory can be lent ({error}); end what else uses the device") from None
        message = {"op": "lend device", "specs": self._inputs.specs, "bytes": self._inputs.bytes}
        self._exchange(message, self._settings.start_timeout_s, self._inputs.fd)

    def lend_outputs(self, size: int) -> None:
        """Lend room for a call's outputs, for those whose own memory can not be mapped.

        Once, before the candidate's source has run: it is also tried whether this child's memory can be mapped at all.
        Where not, all outputs are copied, within the clock; `copies_outputs` tells.
        """
        room = Lent((RawTensor("uint8", (size,), bytearray(size)),), self._device.ordinal)
        self._allocations.lent = room
        message = {"op": "lend outputs", "specs": room.specs, "bytes": room.bytes}
        self._exchange(message, self._settings.start_timeout_s, room.fd)
        claims = self.ask({"op": "trial"}, self._settings.start_timeout_s)["tensors"]
        try:
            self._allocations.find(claims[0])
        except PeekError:
            self.copies_outputs = True
            self.ask({"op": "copy outputs"}, self._settings.start_timeout_s)

    def device_call(self, values: Values, timeout_s: float, op: str = "device call") -> DeviceTimed:
        """Call the model on `values` (or, with op `device burst`, on each of a list made by `merged`).

        The inputs are shown and everything is flushed while the child stands still; then the clock starts. It stops
        when secret places of all outputs have been read. What they held must be what the outputs hold once every
        thread of the child stands still: nothing can finish after its word.
        """
        assert self._inputs is not None, "lend memory before calling"
        self._inputs.stage(values.tensors)
        self._refuse_work_done_meanwhile()
        prepared = self._device.prepare(self._inputs, self._outputs)
        self._outputs = ()
        known = self._allocations.count
        answer, looked, milliseconds = self._clocked({"op": op, "arguments": values.tree}, timeout_s)
        clocks = self._device.clocks.sample()
        if "error" in answer:
            raise Refused(answer)
        self._refuse_disturbance(prepared)
        self._outputs = tuple(shown for shown, _ in looked)
        output = self._taken(answer, looked)
        if self._watches("offspring") and self._child.offspring():
            raise Misbehaved("the candidate keeps processes of its own running after a call")
        if self._watches("input_check") and self._inputs.changed():
            raise Misbehaved("the call changed an input in place")
        said = answer.get("device_ms")
        device_ms = float(said) if isinstance(said, int | float) else None
        return DeviceTimed(output, milliseconds, device_ms, prepared, clocks, self._allocations.count > known)

    def _clocked(
        self, message: dict[str, Any], timeout_s: float
    ) -> tuple[dict[str, Any], list[tuple[Shown, Glance]], float]:
        """Ask, and look at the outputs before the clock stops; then every thread of the child is stopped."""
        looked: list[tuple[Shown, Glance]] = []
        start = time.perf_counter_ns()
        self._child.thaw()
        self._child.send(message)
        answer = self._child.receive(time.monotonic() + timeout_s)
        claims = answer.get("tensors")
        for claim in claims if isinstance(claims, list) else ():
            shown = self._allocations.find(claim)
            looked.append((shown, self._device.glancer.look(shown)))
        milliseconds = (time.perf_counter_ns() - start) / 1e6
        if self._watches("standing_still"):
            self._child.freeze()
            self._stood = (self._cpu_ms(), time.monotonic())
        return answer, looked, milliseconds

    def _taken(self, answer: dict[str, Any], looked: Sequence[tuple[Shown, Glance]]) -> Values:
        """The outputs' values, which must still be what was seen within the clock."""
        tree = answer.get("tree")
        if not isinstance(tree, dict) or not is_sound(tree, len(looked)):
            raise PeekError("the child described its result in a form that can not be read")
        if sum(shown.bytes for shown, _ in looked) > self.result_bytes:
            raise PeekError(f"the outputs take more than {self.result_bytes} bytes")
        values = []
        for index, (shown, glance) in enumerate(looked):
            raw, data = fetch(shown)
            if not glance.agrees(data):
                raise Misbehaved(f"output {index} still changed after the candidate had said that it was done")
            values.append(raw)
        return Values(tree, tuple(values))

    def _refuse_disturbance(self, prepared: Prepared) -> None:
        """Somebody's device work went on while no call did: once may be chance, often is the candidate's."""
        self._calls += 1
        self._disturbed += not prepared.was_idle
        if self._disturbed >= max(DISTURBED_AT_LEAST, DISTURBED_SHARE * self._calls):
            raise Misbehaved(
                f"the device was busy while no call was going on, before {self._disturbed} of {self._calls} calls"
            )

    def _give_back(self) -> None:
        if self._inputs is not None:
            self._inputs.close()
            self._inputs = None

    def close(self) -> str:
        """End the child, then let go of its memory and of what was lent."""
        said = super().close()
        self._allocations.close()
        self._give_back()
        return said


def merged(calls: Sequence[Values]) -> Values:
    """Several calls' arguments as those of one burst: every tensor is lent, each call has its own."""
    tensors: list[RawTensor] = []
    trees = []
    for values in calls:
        trees.append(_shifted(values.tree, len(tensors)))
        tensors.extend(values.tensors)
    return Values({"l": trees}, tuple(tensors))


def _shifted(tree: dict[str, Any], by: int) -> dict[str, Any]:
    ((kind, body),) = tree.items()
    if kind == "t":
        return {"t": body + by}
    if kind in ("l", "p"):
        return {kind: [_shifted(item, by) for item in body]}
    if kind == "d":
        return {"d": [[key, _shifted(item, by)] for key, item in body]}
    return tree
