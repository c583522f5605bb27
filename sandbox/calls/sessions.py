"""The judge's side of a child: questions, shared inputs, calls, and raw outputs."""

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Self

from kernelwright.sandbox.calls.timeouts import CallTimeout, FirstCallTimeout, ImportTimeout
from kernelwright.sandbox.clocks import ClockSample
from kernelwright.sandbox.jail.layers import Kind
from kernelwright.sandbox.jail.process import REPORTS_SYSCALLS, Child, ChildGone, ChildLate
from kernelwright.sandbox.logs import escaped, one_line
from kernelwright.sandbox.tensors import (
    HostTensor,
    MemoryReadError,
    RawTensor,
    SharedMemory,
    Values,
    are_mapped,
    described,
    marked,
    read_tensors,
    spoil,
    with_changed,
)
from kernelwright.sandbox.verdict.errors import MachineError
from kernelwright.sandbox.verdict.settings import Defence, JudgeSettings
from kernelwright.sandbox.workfolder import WorkFolder


class Refused(Exception):
    """The child answered with an error: its last line, its log, and its kind."""

    def __init__(self, answer: dict[str, Any]) -> None:
        error = answer.get("error")
        log = answer.get("log")
        self.reason = one_line(error) if isinstance(error, str) else "an error that is not text"
        self.log = escaped(log) if isinstance(log, str) else ""
        self.compiling = answer.get("compiling") is True
        self.unsupported = answer.get("unsupported") is True
        """Whether a value cannot be handed over."""
        self.memory = answer.get("memory") is True
        room = answer.get("room")
        self.room = room if type(room) is int and room > 0 else None
        """Bytes of an output for which too little memory was shared."""
        super().__init__(self.reason)


class Unbuilt(Exception):
    """The candidate requests an extension that was not built. The child waits, and must be ended."""


class Misbehaved(Exception):
    """The child broke a rule that every honest candidate keeps, which the text names."""


BAD_RUNS = (ChildGone, ChildLate, Refused, MemoryReadError, Misbehaved)
"""Errors of a call that a candidate causes."""


Timeout = float | CallTimeout | FirstCallTimeout | ImportTimeout
"""Seconds by the wall clock, or another limit of a wait."""

LOG = logging.getLogger("kernelwright.sandbox.calls")
ROOM, LEAST_BYTES = 4, 2**24
"""Largest result, as a multiple of the reference's and a minimum: enough to describe its error."""
MOST_RESERVED = 2 * 2**30
"""Largest reserve: the time to write a larger result hides the page faults."""
SPARE = 3
"""Reserve, as a multiple of the memory of inputs and result."""
OBSERVING = 3
IDLE_MS, LEAVING_MS = 0.0, 5.0
"""Processor time that a child may use while it is stopped.

None: a thread that is off its core runs again only if something wakes it. Where the kernel does not report that it is
off, a thread may still be leaving its core when the clock stops.
"""


CLOCKS, CLOCKS_MS = 0.02, 0.05
"""Difference between a process's kernel clock and the judge's clock in a call: a share of the time, plus a constant."""


LATE_MS, LATE_SHARE = 0.03, 0.25
"""Excess of the judge's own work over an idle device: the larger of a time and a share."""
ANSWER_MS = 0.4
"""Longest time of a little work on an idle device, on the host's clock."""


class Prepared(NamedTuple):
    """Times of the judge's own work before a call, in ms."""

    taken_ms: float
    """On the device's clock."""
    idle_ms: float
    """The same on an idle device."""
    answer_ms: float = 0.0
    """The longest answer of the device to a little work, on the host's clock, before the inputs appeared."""

    @property
    def was_idle(self) -> bool:
        """True if nothing else ran on the device.

        Processes share the device in time slices of a millisecond or two. Work of a stopped child (queued before, or a
        kernel that does not end) makes the judge wait for its slice, on the host's clock. Where a slice of the judge
        ends within its own work, that work takes longer on the device's clock.
        """
        in_time = self.taken_ms - self.idle_ms <= max(LATE_MS, LATE_SHARE * self.idle_ms)
        return in_time and self.answer_ms <= ANSWER_MS


class DeviceObservation(NamedTuple):
    """Observations of one call on the device, besides its time on the judge's clock."""

    device_ms: float | None
    """Time by the device's events, as the worker reports it; not trusted."""
    prepared: Prepared
    clocks: ClockSample | None
    made_twice: bool = False
    """Whether the call was repeated on the same values after a lack of memory: the first may have done the work."""


class Timed(NamedTuple):
    """One call's result, its time on the judge's clock, and the processor time of all threads of the child."""

    output: Values
    milliseconds: float
    cpu_ms: float
    device: DeviceObservation | None = None


def beyond_threads(settings: JudgeSettings, milliseconds: float, cpu_ms: float) -> str:
    """Describe a call that used more processor time than its threads can; empty for others.

    A timed child has one core per thread, and all threads that it starts stay there. Exceeding that takes moving them
    to other cores.
    """
    threads = settings.threads
    if threads >= len(settings.cores) or cpu_ms <= threads * (milliseconds * (1 + CLOCKS) + CLOCKS_MS):
        return ""
    used = f"{cpu_ms:.2f} ms of processor time in a call of {milliseconds:.2f} ms"
    return f"the candidate used {used}, more than --threads {threads} allows"


def question(op: str, values: Values, changes: Sequence[int] = ()) -> dict[str, Any]:
    """Make the message for a call on values that are in place; `changes` are inputs that the call may change."""
    seed = {} if values.seed is None else {"seed": values.seed}
    return {"op": op, "arguments": values.tree} | seed | ({"changes": list(changes)} if changes else {})


class Session:
    """One child and the memory shared with it. Between questions every thread of the child is stopped.

    Questions raise `Refused` (the child's own error), `ChildGone`, `ChildLate`, `MemoryReadError`, `Misbehaved` or
    `Unbuilt`.
    """

    def __init__(self, kind: Kind, folder: WorkFolder, settings: JudgeSettings) -> None:
        self._kind, self._settings = kind, settings
        self._child = Child(kind, folder, settings)
        self._shared: SharedMemory | None = None
        self.result_bytes = settings.memory_bytes
        """Largest result; lower where its size is known."""
        self.returns_inputs = False
        """Whether the reference's results lie in the memory of inputs, so that a candidate's may."""
        self.may_spoil: Callable[[RawTensor], bool] | None = None
        """Which tensors of a result are overwritten once they are read, so that each call has to write them anew."""
        self.is_called = False
        """Whether its model was called: a candidate's first call may compile."""
        self.changes: tuple[int, ...] = ()
        """Inputs that the reference changes in place, which are part of a call's result."""
        self.restores = False
        """Whether weights that calls change are restored before each call."""
        self._is_read = False
        self._reserved = False
        self._cpu_ms_at_stop: float | None = None
        """The child's processor time in ms when it was stopped; None while it runs."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def greet(self) -> None:
        self.wait_started()
        self.initialize()

    def initialize(self) -> None:
        """Initialise the device, if any; nothing may be timed on it during that."""

    def wait_started(self) -> None:
        """Wait until the child has started. A failure is the machine's, since no candidate code has run."""
        if self._child.pid:
            return
        try:
            self._child.greet(time.monotonic() + self._settings.start_timeout_s)
            self._child.stop()
            LOG.debug("%s has greeted", self._kind)
        except ChildLate:
            limit = self._settings.start_timeout_s
            raise MachineError(
                f"no child process came up within {limit:.0f} s; end the programs that load this machine"
            ) from None
        except ChildGone as error:
            raise MachineError(f"{error}; see `kernelwright doctor`, or try --jail off to find the layer") from None

    def ask(self, message: dict[str, Any], timeout_s: Timeout, values: Values | None = None) -> dict[str, Any]:
        """Ask an untimed question; its tensors are shared for as long as the child maps them."""
        if values is None or not values.tensors:
            return self._exchange(message, timeout_s)[0]
        shared = SharedMemory(values.tensors)
        try:
            return self._exchange(message | {"specs": shared.specs}, timeout_s, shared.fd)[0]
        finally:
            shared.close()

    def share_inputs(self, values: Values) -> None:
        """Share memory for inputs of these sizes with the child, where calls put their values."""
        if self._shared is not None:
            self._shared.close()
        self._shared = SharedMemory(values.tensors)
        self._exchange(
            {"op": "share inputs", "specs": self._shared.specs}, self._settings.start_timeout_s, self._shared.fd
        )

    def call(self, values: Values, timeout_s: float, op: str = "call") -> Timed:
        """Call the model on `values` and time it.

        The inputs are written while the child is stopped, so nothing can start early. The clock runs from its release
        until every thread is stopped after "done", so nothing can finish late. The raw output is read afterwards.
        """
        answer, milliseconds, cpu_ms = self._call(values, timeout_s, op)
        assert self._shared is not None
        changed = {} if op.startswith("exact") else {index: self._shared.taken(index) for index in self.changes}
        output = self.fetch(answer) if op.startswith("exact") else self._read_result(answer)
        claims = described(answer)[1]
        output = marked(output, [HostTensor.checked(claim) for claim in claims], op)
        if self.may_spoil and self._watches("overwriting"):
            self._spoil([claim for claim, raw in zip(claims, output.tensors, strict=True) if self.may_spoil(raw)])
        self.refuse_activity_while_stopped()
        return Timed(with_changed(output, changed), milliseconds, cpu_ms)

    def _spoil(self, claims: list[Any]) -> None:
        """Overwrite some of a result, and refuse one whose pages may be copies of each other, or nobody's work."""
        assert self._shared is not None
        try:
            if self.returns_inputs:
                claims = [one for one in claims if not are_mapped(self._child.pid, [one["address"]], self._shared.fd)]
            is_own = spoil(self._child.pid, claims)
        except MemoryReadError:
            raise Misbehaved("the result lies in memory that cannot be written; return memory of its own") from None
        except OSError:
            return  # the next question says how it ended
        if not is_own:
            raise Misbehaved("the result is in pages mapped shared, from a file or never written; return own memory")

    def _read_result(self, answer: dict[str, Any]) -> Values:
        """Read the result after overwriting the inputs, which destroys results in their memory.

        A copy-on-write mapping of the shared memory would otherwise pass for a complete copy. The first result is also
        read before: it shows whether a reference's result lies there, and explains the refusal to a candidate.
        """
        assert self._shared is not None
        trusted, first, self._is_read = self._kind != "worker", not self._is_read, True
        if self.returns_inputs or (trusted and not first) or not self._watches("overwriting"):
            return self.fetch(answer)
        before = self.fetch(answer) if first else None
        self._shared.overwrite()
        output = self.fetch(answer)
        if before is None or before == output:
            return output
        if not trusted:
            raise Misbehaved("the result lies in the memory of an input, and the reference's does not; return a copy")
        self.returns_inputs = True
        return before

    def call_ms(self, values: Values, timeout_s: float, op: str = "call") -> float:
        """Return the time of a call in ms without reading the result; for trusted code."""
        return self._call(values, timeout_s, op)[1]

    def _call(self, values: Values, timeout_s: float, op: str) -> tuple[dict[str, Any], float, float]:
        assert self._shared is not None, "share memory before calling"
        self.refuse_activity_while_stopped()
        if self.restores:
            self._exchange({"op": "restore"}, self._settings.call_timeout_s)
        self._shared.write(values.tensors)
        before = self._cpu_ms()
        answer, milliseconds = self._exchange(question(op, values, self.changes), self._next_limit(timeout_s))
        self.is_called = True
        cpu_ms = self._cpu_ms() - before
        excess = beyond_threads(self._settings, milliseconds, cpu_ms)
        if excess and self._kind == "worker" and self._watches("threads"):
            raise Misbehaved(excess)
        if self._kind == "worker" and self._watches("offspring") and self._child.offspring():
            raise Misbehaved("the candidate keeps processes of its own running after a call")
        self._refuse_changes(self._shared.changed(values.tensors))
        return answer, milliseconds, cpu_ms

    def _refuse_changes(self, changed: Sequence[int]) -> None:
        """Raise `Misbehaved` where an input was changed that the reference leaves as it is."""
        first = next((index for index in changed if index not in self.changes), None)
        if first is not None and self._watches("input_check"):
            others = "which the reference leaves as it is" if self._kind == "worker" else "and others leave it as it is"
            raise Misbehaved(f"the call changed input {first} in place, {others}")

    def changes_made(self, values: Values, timeout_s: float) -> dict[str, list[int]]:
        """Return the numbers of `inputs`, `parameters` and `buffers` that a call of a trusted child changes."""
        self._show(values)
        answer = self._exchange(question("changes", values), timeout_s)[0]
        return answer | {"inputs": answer["inputs"] + self._changed_inputs(values)}

    def _changed_inputs(self, values: Values) -> list[int]:
        assert self._shared is not None
        return self._shared.changed(values.tensors)

    @property
    def shared_bytes(self) -> int:
        """Bytes of device memory that the judge shares with this child alone."""
        return 0

    def observe(self, values: Values, gradients: bool) -> Any:
        self._show(values)
        asked = question("observe", values, self.changes) | {"gradients": gradients}
        limit = self._call_limit(OBSERVING * self._settings.call_timeout_s)
        return self._exchange(asked, limit)[0].get("observed")

    def trace(self, values: Values, timeout_s: float) -> dict[str, Any]:
        self._show(values)
        return self._exchange(question("trace", values), timeout_s)[0]

    def copy_weights(self, names: Sequence[str], weights: Values) -> None:
        """Copy weights into the model: by name, or by order and shape."""
        self.ask({"op": "weights", "names": list(names)}, self._settings.start_timeout_s, weights)

    def construct_seeded(self, seed: int, vary: bool) -> dict[str, Any]:
        """Construct another model under this seed; its first call is the next one.

        `vary`: draw the constants of torch's layers. A reference describes its weights.
        """
        self.is_called = False
        return self.ask({"op": "construct seeded", "seed": seed, "vary": vary}, self._settings.start_timeout_s)

    def _next_limit(self, timeout_s: float) -> Timeout:
        """Return the limit of the next call: a candidate's first one, which is not timed, may compile."""
        if self.is_called or self._kind != "worker":
            return self._call_limit(timeout_s)
        return CallTimeout(self._settings.call_timeout_s, self._settings.build_timeout_s, len(self._settings.cores))

    def _call_limit(self, timeout_s: float) -> Timeout:
        return CallTimeout(timeout_s, cores=len(self._settings.cores))

    def _show(self, values: Values) -> None:
        assert self._shared is not None, "share memory before calling"
        self._shared.write(values.tensors)

    def expect(self, result_bytes: int) -> None:
        """Reserve memory for results of about this size, and refuse far larger ones.

        A result takes memory that earlier ones freed, which may be fragmented: without a reserve, every second call of
        the same kernel took fresh pages, and six times as long.
        """
        if self._kind == "worker":
            self.result_bytes = ROOM * result_bytes + LEAST_BYTES
        if self._reserved:
            return
        self._reserved = True
        shared = self._shared.size if self._shared else 0
        reserve = min(SPARE * (result_bytes + shared) + LEAST_BYTES, MOST_RESERVED, self._settings.memory_bytes // ROOM)
        self._exchange({"op": "reserve", "bytes": reserve}, self._settings.call_timeout_s)

    def state(self, most_bytes: int) -> Values:
        """Return the model's buffers after its calls; refuse far more than this many bytes."""
        answer = self.ask({"op": "state"}, self._settings.start_timeout_s)
        return self.fetch(answer, ROOM * most_bytes + LEAST_BYTES)

    def nothing_ms(self) -> float:
        """Return the time of an empty question in ms, the cost of the protocol."""
        return self._exchange({"op": "nothing"}, self._settings.call_timeout_s)[1]

    def fetch(self, answer: dict[str, Any], most_bytes: int | None = None) -> Values:
        """Read the values that an answer describes from the child's memory, up to the largest result."""
        tree, claims = described(answer)
        try:
            return Values(tree, read_tensors(self._child.pid, claims, most_bytes or self.result_bytes))
        except ProcessLookupError:
            self._child.receive(time.monotonic())  # says how it ended
            raise ChildGone("the child ended while its result was read") from None

    def _exchange(self, message: dict[str, Any], timeout_s: Timeout, *fds: int) -> tuple[dict[str, Any], float]:
        self.refuse_activity_while_stopped()
        start = time.perf_counter_ns()
        self._resume()
        self._child.send(message, *fds)
        answer = self._wait_for_answer(timeout_s)
        self._stop()
        milliseconds = (time.perf_counter_ns() - start) / 1e6
        LOG.debug("%s %s: %.1f ms", self._kind, message["op"], milliseconds)
        if "error" in answer:
            raise Refused(answer)
        return answer, milliseconds

    def _wait_for_answer(self, timeout_s: Timeout) -> dict[str, Any]:
        if not isinstance(timeout_s, float | int):
            timeout_s.wait(self._child)
            timeout_s = 0.0
        answer = self._child.receive(time.monotonic() + timeout_s)
        if answer.get("unbuilt") is True:
            raise Unbuilt
        return answer

    def _resume(self) -> None:
        self._cpu_ms_at_stop = None
        self._child.resume()

    def _stop(self) -> None:
        """Stop the child while the clock runs, so that later work is not part of a call."""
        if self._watches("standing_still"):
            self._child.stop()
            self._cpu_ms_at_stop = self._cpu_ms()

    def refuse_activity_while_stopped(self) -> None:
        """Raise `Misbehaved` where the child has run since it was stopped, as by the SIGCONT of a timer.

        It can stop itself again, and may have slowed others, worked on the next inputs or changed the last result. Call
        this wherever correctness depends on the stop.
        """
        if self._cpu_ms_at_stop is None or self._kind != "worker" or not self._watches("idle_witness"):
            return
        used_ms = self._cpu_ms() - self._cpu_ms_at_stop
        if used_ms > (IDLE_MS if REPORTS_SYSCALLS else LEAVING_MS):
            raise Misbehaved(f"the candidate ran while it was stopped, for {used_ms:.3f} ms")

    def _cpu_ms(self) -> float:
        return self._child.cpu_ms() if self._child.pid else 0.0

    def _watches(self, defence: Defence) -> bool:
        return defence not in self._settings.without

    def ran_out_of_memory(self, timeout_s: float = 1) -> bool:
        """True if a memory limit has ended the child or its compiler. 0 s: the child goes on. Call before `close`."""
        return self._child.ran_out_of_memory(timeout_s)

    @property
    def layers(self) -> tuple[str, ...]:
        return self._child.layers

    def close(self) -> str:
        """End the child with all its processes; return its output."""
        start = time.perf_counter_ns()
        self._child.close()
        LOG.debug("%s ended in %.1f ms", self._kind, (time.perf_counter_ns() - start) / 1e6)
        if self._shared is not None:
            self._shared.close()
            self._shared = None
        return self._child.output()
