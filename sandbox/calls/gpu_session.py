"""The judge's side of a child on a GPU: inputs appear on an idle device, outputs are sampled within the timed call."""

import itertools
import logging
import math
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any

from kernelwright.sandbox.calls.backend import Needs
from kernelwright.sandbox.calls.gpu_buffers import (
    Allocations,
    Layout,
    OutputSample,
    SharedDeviceMemory,
    Shown,
    fetch,
    relieve,
)
from kernelwright.sandbox.calls.gpu_device import ISSUE_FACTOR, ISSUE_S, RUN_S, CudaDevice, Flags
from kernelwright.sandbox.calls.sessions import (
    LEAST_BYTES,
    OBSERVING,
    ROOM,
    DeviceObservation,
    Misbehaved,
    Prepared,
    Refused,
    Session,
    Timed,
    Timeout,
    question,
)
from kernelwright.sandbox.jail.layers import Kind
from kernelwright.sandbox.jail.process import ChildGone, ChildLate
from kernelwright.sandbox.machine import gib
from kernelwright.sandbox.tensors import MemoryReadError, RawTensor, Values, described, marked, names_each, with_changed
from kernelwright.sandbox.verdict.errors import MachineError
from kernelwright.sandbox.verdict.settings import JudgeSettings
from kernelwright.sandbox.workfolder import WorkFolder
from kernelwright_child import driver

LOG = logging.getLogger("kernelwright.sandbox.calls")
DISTURBED_AT_LEAST, DISTURBED_SHARE = 3, 0.5
"""Number and share of calls with a busy device from which the candidate is checked for it.

Times of such calls never count, so a smaller share gains nothing; a busy host stays below it."""
MOST_MADE_TWICE = 8
"""Most calls of a candidate that may be repeated for lack of memory. None of them counts."""
AFTERMATH_S = 0.1
"""Time until the work of a killed child has left the device."""
NAMELESS = 2**30
"""Allowance for a result of unknown size."""
CHANGED_INPUT = "the call changed an input in place"
SHARED_AHEAD = 2**28
"""Memory for outputs up to this size is shared before it is known to be needed."""


class GpuSession(Session):
    """A `Session` whose calls run on a device. The settings must have `gpu`; use it while the device is held."""

    def __init__(self, kind: Kind, folder: WorkFolder, settings: JudgeSettings, device: CudaDevice) -> None:
        super().__init__(kind, folder, settings)
        self._device = self.device = device
        self._flags: Flags | None = None
        self._runs_on = False
        """Whether it has not answered yet, and so was not stopped."""
        self.host_ms = 0.0
        """Time to issue a call ahead, in ms, as the child reports it."""
        self._inputs: SharedDeviceMemory | None = None
        self._owns_inputs = True
        self._allocations = Allocations()
        self._outputs: tuple[Shown, ...] = ()
        self._calls = self._disturbed = self._made_twice = 0
        self.copies_outputs = False
        """Whether the child copies every output to shared memory, since the judge can map none of its own."""
        self.switches: dict[str, Any] = {}
        self.needs_warming = False
        """Whether it has freed the memory of calls, so that the next one must allocate it."""
        self._outputs_bytes = 0
        self._is_ready = False
        self._is_read_in_place = False
        self._has_issued = False

    def initialize(self) -> None:
        """Make the device's context and run every first-time initialisation, in half a second."""
        if self._is_ready:
            return
        try:
            try:
                self._use_device()
            except Refused:  # most likely for lack of memory
                relieve()
                self._use_device()
        except (Refused, ChildGone, ChildLate) as error:
            raise MachineError(f"no child can use the device ({error}); see `kernelwright doctor`") from None
        self._is_ready = True

    def _use_device(self) -> None:
        message = {"op": "use device", "threads": self._settings.threads}
        answer, _ = self._exchange(message, self._settings.start_timeout_s)
        LOG.debug("%s has a context: %s", self._kind, answer)

    def share_memory(self, layout: Layout, result_bytes: int) -> None:
        """Share memory and calibrate on an idle device, before the candidate's source runs."""
        self.share_layout(layout)
        self._outputs_bytes = result_bytes
        self.copies_outputs = not self.can_be_mapped
        if self.copies_outputs or result_bytes <= SHARED_AHEAD:
            self.share_outputs(result_bytes)
        if self.copies_outputs:
            self.ask({"op": "copy outputs"}, self._settings.start_timeout_s)

    def to_device(self, precision: str) -> None:
        answer = self.ask({"op": "to device", "precision": precision}, self._settings.start_timeout_s)
        switches = answer.get("switches")
        self.switches = switches if isinstance(switches, dict) else {}

    def share_inputs(self, values: Values) -> None:
        self.share_layout([raw[:2] for raw in values.tensors])

    def share_layout(self, layout: Layout) -> None:
        """Share device memory for inputs of this layout. No child may have work on the device meanwhile."""
        self._unshare_inputs()
        self._device.make_current()
        shared = SharedDeviceMemory(layout, self._device.ordinal)
        try:
            self._device.calibrate(shared)
            self.show_memory(shared)
        except BaseException:
            shared.close()
            raise
        self._owns_inputs = True

    def show_memory(self, shared: SharedDeviceMemory) -> None:
        """Share memory that others may see too; its owner closes it."""
        self._unshare_inputs()
        self._exchange(
            {"op": "share inputs", "specs": shared.specs, "bytes": shared.bytes},
            self._settings.start_timeout_s,
            shared.fd,
        )
        self._inputs, self._owns_inputs = shared, False

    @property
    def inputs(self) -> SharedDeviceMemory | None:
        return self._inputs

    @property
    def shared_bytes(self) -> int:
        """Bytes of device memory that the judge shares with this child alone, for inputs and outputs."""
        inputs, outputs = self._inputs if self._owns_inputs else None, self._allocations.room
        return sum(shared.bytes for shared in (inputs, outputs) if shared is not None)

    def share_outputs(self, size: int) -> None:
        """Share memory for outputs that cannot be mapped, which are then copied within the call."""
        room = SharedDeviceMemory([("uint8", (size,))], self._device.ordinal)
        self._allocations.room = room
        message = {"op": "share outputs", "specs": room.specs, "bytes": room.bytes}
        self._exchange(message, self._settings.start_timeout_s, room.fd)

    def free_memory(self) -> None:
        """Let the child free all device memory that it caches, its results included, unless they are in use."""
        if self._is_read_in_place or self._has_issued or self._cpu_ms_at_stop is None:  # another thread has asked it
            return
        self._device.make_current()
        self._allocations.forget()
        self._outputs = ()
        self.ask({"op": "free memory"}, self._settings.start_timeout_s)
        self.needs_warming = True

    @property
    def mapped_allocations(self) -> int:
        return self._allocations.count

    def release_result(self) -> None:
        self._is_read_in_place = False

    @cached_property
    def can_be_mapped(self) -> bool:
        claims = self.ask({"op": "trial"}, self._settings.start_timeout_s)["tensors"]
        try:
            self._allocations.find(claims[0])
        except MemoryReadError:
            return False
        return True

    def needs(self, differentiated: bool, values: Values) -> Needs:
        self._show(values)
        asked = question("size", values) | {"backward": differentiated}
        answer = self.ask(asked, OBSERVING * self._settings.call_timeout_s)
        taken = {name: int(answer[name]) for name in ("result", "exact", "peak", "weights")}
        return Needs(inputs=sum(len(raw.data) for raw in values.tensors), **taken)

    def layout(self, seed: int, timeout_s: float) -> Layout:
        answer = self._drawn({"op": "layout", "seed": seed}, timeout_s)
        return [(str(dtype), tuple(shape)) for dtype, shape in answer["layout"]]

    def draw(self, seed: int, timeout_s: float) -> Values:
        """Draw inputs in a trusted child under a seed; they stay on the device."""
        assert self._inputs is not None, "share memory before drawing"
        answer = self._drawn({"op": "draw", "seed": seed}, timeout_s)
        return Values(answer["tree"], self._inputs.taken())

    def _drawn(self, message: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        """Draw in a trusted child; on the host, where the device's memory is too small even after relief."""
        for _ in range(2):
            try:
                return self.ask(message, timeout_s)
            except Refused as refused:
                if not refused.memory:
                    raise
                LOG.info("memory was missing to draw inputs: %s", refused.reason)
                relieve()
        return self.ask(message | {"on_host": True}, timeout_s)

    def expect(self, result_bytes: int) -> None:
        if self._kind == "worker":
            self.result_bytes = 4 * result_bytes + NAMELESS

    def policy(self, name: str) -> dict[str, Any]:
        """Set torch's precision switches by this policy in a trusted child; return them."""
        answer = self.ask({"op": "policy", "precision": name}, self._settings.start_timeout_s)
        switches = answer.get("switches")
        return switches if isinstance(switches, dict) else {}

    def state(self, most_bytes: int) -> Values:
        """Return the model's buffers after its calls; refuse far more than this many bytes."""
        self._device.make_current()
        answer = self.ask({"op": "state"}, self._settings.start_timeout_s)
        tree, claims = described(answer)
        shown = [self._allocations.find(claim) for claim in claims]
        if sum(output.bytes for output in shown) > (most := ROOM * most_bytes + LEAST_BYTES):
            raise MemoryReadError(f"the buffers of the model take more than {most} bytes")
        return Values(tree, tuple(fetch(output)[0] for output in shown))

    def call(self, values: Values, timeout_s: Timeout, op: str = "call", in_place: bool = False) -> Timed:
        """Call the model on `values`.

        With `in_place` a trusted child's result is not copied: it is valid until the next question or
        `release_result`. A call that lacked memory is repeated when others have freed theirs.
        """
        self.is_called = True
        try:
            return self._called(values, timeout_s, op, in_place)
        except Refused as refused:
            if not self._provide_memory(refused):
                raise
        except BaseException:
            self.release_result()
            raise
        again = self._called(values, timeout_s, op, in_place)
        assert again.device is not None
        return again._replace(device=again.device._replace(made_twice=self._kind == "worker"))

    def _provide_memory(self, refused: Refused) -> bool:
        """Share or free the memory that a call lacked; return whether that was possible."""
        LOG.info("%s refused a call for lack of memory: %s", self._kind, refused.reason)
        self._made_twice += 1
        if self._kind == "worker" and self._made_twice > MOST_MADE_TWICE:
            return False
        if refused.room is not None and self._allocations.room is None and self._kind == "worker":
            self.share_outputs(self._outputs_bytes)
            return True
        if refused.memory:
            relieve()
        return refused.memory

    def _called(self, values: Values, timeout_s: Timeout, op: str, in_place: bool) -> Timed:
        """Make one call, as `call` describes it.

        The inputs are shown and caches are flushed while the child is stopped; then the clock starts. It stops when
        secret places of all outputs have been sampled. The outputs must still agree with the samples once every thread
        of the child is stopped, so nothing can finish after its answer.
        """
        assert self._inputs is not None, "share memory before calling"
        start_ns = time.perf_counter_ns()
        self._device.make_current()
        self._inputs.stage(values.tensors)
        prepared = self._device.prepare(self._inputs, self._outputs)
        prepared_ns = time.perf_counter_ns()
        self.refuse_activity_while_stopped()
        self._refuse_disturbance(prepared)
        self._outputs = ()
        known, before = self._allocations.count, self._cpu_ms()
        self.needs_warming, self._is_read_in_place = False, True
        asked = question(op, values, self.changes) | ({"wake": True} if self._device.wakes else {})
        answer, looked, milliseconds = self._clocked(asked, timeout_s)
        answered_ns = time.perf_counter_ns()
        clocks = self._device.clocks.sample()
        if "error" in answer:
            self._is_read_in_place = False
            raise Refused(answer)
        cpu_ms = self._cpu_ms() - before
        own = len(looked) - (len(self.changes) if op == "call" else 0)
        looked, left = looked[:own], looked[own:]
        self._outputs = tuple(shown for shown, _ in looked)
        output = self._taken(answer, looked, in_place)
        output = marked(output, self._outputs, op)
        if left:
            inputs = self._taken({"tree": {"l": [{"t": number} for number in range(len(left))]}}, left, in_place=False)
            output = with_changed(output, dict(zip(self.changes, inputs.tensors, strict=True)))
        read_ns = time.perf_counter_ns()
        self._is_read_in_place = in_place
        self.refuse_leftovers()
        if self.watches_inputs:
            self._refuse_changes(self._inputs.changed())
        if self._allocations.count > known:
            self._allocations.trim(len(looked))
        self._inputs.stage_nothing()
        self._log(op, (start_ns, prepared_ns, answered_ns, read_ns))
        said = answer.get("device_ms")
        device_ms = float(said) if isinstance(said, int | float) and math.isfinite(said) and said > 0 else None
        observed = DeviceObservation(device_ms, prepared, clocks)
        return Timed(output, milliseconds, cpu_ms, observed)

    def flags(self) -> Flags:
        if self._flags is None:
            self._flags = Flags(self._device.ordinal)
            try:
                self._exchange(
                    {"op": "share flags", "bytes": self._flags.bytes}, self._settings.start_timeout_s, self._flags.fd
                )
            finally:
                os.close(self._flags.fd)
        return self._flags

    def prepare(self, values: Values) -> Prepared:
        """Show inputs while the child is stopped, on an idle device with a flushed L2 cache."""
        assert self._inputs is not None, "share memory before calling"
        self._device.make_current()
        self._inputs.stage(values.tensors)
        prepared = self._device.prepare(self._inputs, self._outputs)
        self._inputs.stage_nothing()
        self._outputs = ()
        self.needs_warming, self._is_read_in_place = False, False
        self.refuse_activity_while_stopped()
        self._refuse_disturbance(prepared)
        return prepared

    def show(self, values: Values) -> None:
        self._show(values)
        self._outputs = ()

    def issue(self, message: dict[str, Any], limit_s: float) -> dict[str, Any] | None:
        """Ask a question that is answered before its device work is done; None where the answer is late."""
        self.refuse_activity_while_stopped()
        self._child.send(message)
        self._resume()
        try:
            answer = self._wait_for_answer(limit_s)
        except ChildLate:
            self._runs_on = True
            return None
        self._stop()
        return answer

    def issue_and_wait(self, message: dict[str, Any]) -> dict[str, Any]:
        """Ask the same kind of question. Raises `ChildLate` without an answer."""
        answer = self.issue(message, RUN_S)
        if answer is None:
            raise ChildLate
        return answer

    @contextmanager
    def keeps_memory(self) -> Iterator[None]:
        """Within it calls are issued ahead: nothing of theirs is freed, and their results stay mapped."""
        self._has_issued = True
        try:
            yield
        finally:
            self._has_issued = False

    def drain(self) -> None:
        """Let issued calls run on any inputs, and wait for their end."""
        self._device.dealer.release(self.flags())
        if self._runs_on:
            self._wait_for_answer(RUN_S)
            self._stop()
            self._runs_on = False
        self.issue_and_wait({"op": "times"})

    def issue_limit_s(self, calls: int) -> float:
        return min(RUN_S, max(ISSUE_S, ISSUE_FACTOR * calls * self.host_ms / 1e3))

    @property
    def watches_inputs(self) -> bool:
        return self._watches("input_check")

    def find(self, claims: list[Any], calls: int) -> list[Shown]:
        known = self._allocations.count
        shown = [self._allocations.find(claim) for claim in claims]
        if sum(output.bytes for output in shown) > calls * self.result_bytes:
            raise MemoryReadError(f"the outputs of a call take more than {self.result_bytes} bytes")
        if self._allocations.count > known:
            self._allocations.trim(len(shown))
        return shown

    def refuse_leftovers(self) -> None:
        """Raise `Misbehaved` where a candidate ran while it was stopped, or left processes running."""
        self.refuse_activity_while_stopped()
        if self._kind == "worker" and self._watches("offspring") and self._child.offspring():
            raise Misbehaved("the candidate keeps processes of its own running after a call")

    def _log(self, op: str, marks: tuple[int, ...]) -> None:
        if not LOG.isEnabledFor(logging.DEBUG):  # reading the used memory takes as long as a call
            return
        steps = [(end - begin) / 1e6 for begin, end in itertools.pairwise((*marks, time.perf_counter_ns()))]
        words = "prepared in %.1f ms, called in %.1f, read in %.1f, looked after in %.1f; %s of the device are used"
        LOG.debug("%s %s: " + words, self._kind, op, *steps, gib(self._device.used_bytes()))

    def call_ms(self, values: Values, timeout_s: float, op: str = "call") -> float:
        """Return the time of a call in ms; for a trusted child by its events, without reading the result."""
        trusted = self._kind == "reference"
        found = self.call(values, timeout_s, op, in_place=trusted)
        self.release_result()
        events_ms = found.device.device_ms if trusted and found.device is not None else None
        return found.milliseconds if events_ms is None else events_ms

    def nothing_ms(self) -> float:
        """Return the time of an almost empty call of a trusted child in ms, the cost of the protocol."""
        return self._nothing()[1]

    def nothing_on_device_ms(self) -> float:
        """Return the time of an almost empty call in ms by the device's events."""
        answer, milliseconds = self._nothing()
        said = answer.get("device_ms")
        return float(said) if isinstance(said, int | float) and said > 0 else milliseconds

    def _nothing(self) -> tuple[dict[str, Any], float]:
        assert self._inputs is not None, "share memory before calling"
        self._device.make_current()
        self._device.prepare(self._inputs, self._outputs)
        self._outputs = ()
        answer, _, milliseconds = self._clocked({"op": "nothing"}, self._settings.call_timeout_s)
        return answer, milliseconds

    def _call_limit(self, timeout_s: float) -> Timeout:
        """Return a limit by the wall clock, since others wait for the device."""
        return timeout_s

    def _show(self, values: Values) -> None:
        assert self._inputs is not None, "share memory before calling"
        self._device.make_current()
        self._inputs.stage(values.tensors)
        driver.synchronize()
        self._inputs.show_staged(self._device.stream)
        self._device.stream.wait()
        self._inputs.stage_nothing()

    def _changed_inputs(self, values: Values) -> list[int]:
        assert self._inputs is not None
        self._inputs.stage(values.tensors)
        found = self._inputs.changed()
        self._inputs.stage_nothing()
        return found

    def _clocked(
        self, message: dict[str, Any], timeout_s: Timeout
    ) -> tuple[dict[str, Any], list[tuple[Shown, OutputSample]], float]:
        """Ask, and sample the outputs before the clock stops; then stop every thread of the child."""
        self._child.send(message)  # it is stopped, and reads this when it is resumed
        start = time.perf_counter_ns()
        self._resume()
        answer = self._wait_for_answer(timeout_s)
        claims = answer.get("tensors")
        shown = [self._allocations.find(claim) for claim in claims] if isinstance(claims, list) else []
        if self._inputs is not None and message["op"] == "call":
            shown += self._inputs.shown(self.changes)
        looked = list(zip(shown, self._device.sampler.sample(shown), strict=True))
        stop = time.perf_counter_ns()
        self._stop()
        return answer, looked, (stop - start) / 1e6

    def _taken(self, answer: dict[str, Any], looked: Sequence[tuple[Shown, OutputSample]], in_place: bool) -> Values:
        """Return the outputs' values, which must agree with their samples."""
        tree = answer.get("tree")
        if not isinstance(tree, dict) or not names_each(tree, len(looked)):
            raise MemoryReadError("the child described its result in a form that cannot be read")
        if sum(shown.bytes for shown, _ in looked) > self.result_bytes:
            raise MemoryReadError(f"the outputs take more than {self.result_bytes} bytes")
        values: list[RawTensor] = []
        for index, (shown, sample) in enumerate(looked):
            raw, data = fetch(shown, in_place)
            if not sample.agrees(data):
                raise Misbehaved(f"output {index} still changed after the candidate had said that it was done")
            values.append(raw)
        return Values(tree, tuple(values))

    def _refuse_disturbance(self, prepared: Prepared) -> None:
        """Refuse a candidate whose device work runs between calls, once that is frequent and no other's."""
        if self._kind != "worker":
            return  # it is trusted: other work is not its own
        self._calls += 1
        self._disturbed += not prepared.was_idle
        if self._disturbed < max(DISTURBED_AT_LEAST, DISTURBED_SHARE * self._calls):
            return
        super().close()
        time.sleep(AFTERMATH_S)
        said = (
            f"the device was busy while no call was going on, before {self._disturbed} of {self._calls} calls (it "
            f"took {prepared.taken_ms:.3g} ms for what takes {prepared.idle_ms:.3g} ms when idle, and "
            f"{prepared.answer_ms:.3g} ms to answer)"
        )
        if self._device.is_busy():
            raise MachineError(
                f"{said}, and still is now that the candidate has been ended; end other programs on the device"
            )
        raise Misbehaved(said)

    def _unshare_inputs(self) -> None:
        if self._inputs is not None and self._owns_inputs:
            self._inputs.close()
        self._inputs = None

    def close(self) -> str:
        """End the child, then unmap its memory and free shared memory."""
        said = super().close()
        self._device.make_current()
        self._allocations.close()
        self._unshare_inputs()
        if self._flags is not None:
            self._flags.close()
            self._flags = None
        return said
