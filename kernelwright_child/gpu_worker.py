"""Handlers of a worker on a device, in place of those for a processor.

The candidate shares this process and may change all of it. Nothing here is trusted: the judge samples the outputs
itself, before it stops its clock and after.
"""

import os
import time
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

from kernelwright_child import driver, gpu_memory, wire
from kernelwright_child.gpu_tool import Tools
from kernelwright_child.model_runner import ModelRunner, seed_draws
from kernelwright_child.models import differentiate, fix_precision, weights_of, widened, widened_value
from kernelwright_child.wire import Handler, Message

WIDEST_ITEM = 8
"""Bytes of the widest output element, complex dtypes aside."""
CYCLES_A_MS = 2_000_000
MANY = 2**18
"""Elements from which torch runs a host loop on several threads."""


def use_device(worker: ModelRunner, handlers: dict[str, Handler]) -> None:
    device = OnDevice(worker)
    handlers.update(device.handlers() | Tools().handlers())
    if hasattr(worker, "draw_values"):
        handlers.update(Drawing(device).handlers())


def use_threads(count: int) -> None:
    """Have torch compute on so many threads. Setting the number it has would start idle threads, all on one core."""
    if torch.get_num_threads() != count:
        torch.set_num_threads(count)


def get_ready(threads: int) -> dict[str, float]:
    """Initialise threads, the device's context, memory, copies and small kernels before the model is known.

    The driver makes its context while the host's threads start. Returns how long it all and the context took, in ms.
    """
    start = time.perf_counter()
    making = driver.begin_context()
    use_threads(threads)
    torch.ones(MANY).mul_(2)
    making.join()
    made = time.perf_counter()
    for dtype in (torch.float32, torch.bfloat16):
        there = torch.ones(MANY, dtype=dtype).to("cuda")
        there.to(torch.float32).add_(1).cpu()
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    first.record()
    last.record()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    return {"ms": 1e3 * (time.perf_counter() - start), "context_ms": 1e3 * (made - start)}


class OnDevice:
    """The GPU's part of a worker, with the shared memory."""

    def __init__(self, worker: ModelRunner) -> None:
        self.worker = worker
        self._memory: gpu_memory.MappedMemory | None = None
        self._spill: gpu_memory.Spill | None = None if hasattr(worker, "draw_values") else gpu_memory.Spill()
        """Memory for outputs that cannot be mapped; a reference copies them to mappable memory."""
        self._events: tuple[Any, Any] | None = None
        self._nothing: torch.Tensor | None = None
        self._woken: torch.Tensor | None = None
        self._kept: list[torch.Tensor] = []
        """Outputs that the judge may still read."""
        self._flags: driver.Shared | None = None
        self._timed: list[list[Any]] = []

    def handlers(self) -> dict[str, Handler]:
        return {
            "to device": self.to_device,
            "share inputs": self.share_inputs,
            "share outputs": self.share_outputs,
            "trial": self.trial,
            "copy outputs": self.copy_outputs,
            "call": self.call,
            "backward": self.backward,
            "share flags": self.share_flags,
            "ahead": self.ahead,
            "times": self.times,
            "nothing": self.nothing,
            "state": self.state,
            "free memory": self.free_memory,
        }

    def to_device(self, message: Message, fds: list[int]) -> Message:
        """Fix the precision and move the model, weights and all; return torch's switches. After `weights`, if any."""
        assert self.worker.model is not None
        switches = fix_precision(message["precision"])
        self.worker.device = "cuda"
        self.worker.model.to("cuda")
        torch.cuda.synchronize()
        return {"switches": switches}

    def share_inputs(self, message: Message, fds: list[int]) -> Message:
        self.worker.shared = []
        if hasattr(
            self.worker, "draw_values"
        ):  # a candidate may keep a view of what was shared with it, and is not trusted
            self._unshare_inputs()
        self._memory = gpu_memory.MappedMemory(fds[0], message["bytes"], message["specs"])
        os.close(fds[0])
        self.worker.shared = self._memory.tensors
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        self._events = first, last
        self._woken = torch.zeros(1, device="cuda")
        return {}

    def _unshare_inputs(self) -> None:
        self._kept, self.worker.results = [], None
        if self._memory is not None:
            torch.cuda.synchronize()
            self._memory.close()
            self._memory = None

    def share_outputs(self, message: Message, fds: list[int]) -> Message:
        self._spill = self._spill or gpu_memory.Spill()
        self._spill.use(gpu_memory.MappedMemory(fds[0], message["bytes"], message["specs"]))
        os.close(fds[0])
        return {}

    def trial(self, message: Message, fds: list[int]) -> Message:
        """Describe a small tensor, for the judge to try to map."""
        self._kept = [torch.ones(1024, device="cuda")]
        torch.cuda.synchronize()
        return {"tensors": [gpu_memory.describe(self._kept[0])[0]]}

    def copy_outputs(self, message: Message, fds: list[int]) -> Message:
        assert self._spill is not None
        self._spill.takes_all = True
        return {}

    def call(self, message: Message, fds: list[int]) -> Message:
        """Call once on the shared inputs; `device_ms` is by the device's events, which a candidate may falsify."""
        with torch.no_grad():
            return self.timed(lambda arguments: self._run(*arguments), message)

    def backward(self, message: Message, fds: list[int]) -> Message:
        return self.timed(self._differentiated, message)

    def share_flags(self, message: Message, fds: list[int]) -> Message:
        """Map the words by which the judge and this process's stream synchronise."""
        self._flags = driver.Shared(torch.cuda.current_device(), message["bytes"], fds[0])
        os.close(fds[0])
        return {}

    def ahead(self, message: Message, fds: list[int]) -> Message:
        """Issue calls ahead on the shared inputs; the device runs each after the judge's flag for new inputs.

        `host_ms` is the time to issue each; `times` returns the device's times. With `show` the answer describes the
        results. Two options need flags that are set already. With `waits` each call is awaited, and `latency_ms` is its
        time on an idle device; `spin_ms` keeps the device busy for that time first.
        """
        assert self._flags is not None
        stream = torch.cuda.current_stream()
        begun, done = self._flags.address, self._flags.address + driver.DONE_OFFSET
        arguments = wire.unpack(message["arguments"], self.worker.shared)
        run = self._ahead_of(message["of"], arguments, message["bytes"])
        self._kept, self.worker.results, self._timed = [], None, []
        results, host_ms, latency_ms = [], [], []
        with torch.set_grad_enabled(message["of"] == "backward"):
            for link, seed in enumerate(message["seeds"], message["base"] + 1):
                events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]  # type: ignore[no-untyped-call]
                driver.wait_value(stream.cuda_stream, begun, link)
                if message.get("spin_ms"):
                    torch.cuda._sleep(int(CYCLES_A_MS * message["spin_ms"]))  # type: ignore[no-untyped-call]
                seed_draws({} if seed is None else {"seed": seed})
                start = time.perf_counter_ns()
                events[0].record(stream)
                results.append(run())
                events[1].record(stream)
                host_ms.append((time.perf_counter_ns() - start) / 1e6)
                driver.write_value(stream.cuda_stream, done, link)
                self._timed.append(events)
                if message.get("waits"):
                    torch.cuda.synchronize()
                    latency_ms.append((time.perf_counter_ns() - start) / 1e6)
        self.worker.results = results
        shown = self._shown(results, waits=False) if message.get("show") else {}
        return shown | {"host_ms": host_ms, "latency_ms": latency_ms}

    def _ahead_of(self, what: str, arguments: Any, sizes: list[int]) -> Callable[[], Any]:
        """Return a call of the model with or without gradients, or one that reads the inputs and fills results."""
        if what == "backward":
            return lambda: self._differentiated(arguments)
        if what == "call":
            return lambda: self._run(*arguments)
        results = [torch.zeros(size, dtype=torch.uint8, device="cuda") for size in sizes]
        words = [tensor.reshape(-1).view(torch.uint8) for tensor in self.worker.shared]
        words = [one[: one.numel() // 8 * 8].view(torch.int64) for one in words]
        total = torch.zeros((), dtype=torch.int64, device="cuda")

        def touch() -> list[torch.Tensor]:
            for one in words:
                torch.sum(one, dim=0, out=total)
            for result in results:
                result.fill_(1)
            return results

        return touch

    def times(self, message: Message, fds: list[int]) -> Message:
        """Wait for the issued calls, and return `device_ms` of each by its events."""
        torch.cuda.synchronize()
        return {"device_ms": [start.elapsed_time(end) for start, end in self._timed]}

    def nothing(self, message: Message, fds: list[int]) -> Message:
        if self._nothing is None:
            self._nothing = torch.zeros(1024, dtype=torch.uint8, device="cuda")
        result = self._nothing
        return self.timed(lambda arguments: result.fill_(1), {"arguments": {"l": []}})

    def state(self, message: Message, fds: list[int]) -> Message:
        self.worker.state(message, fds)
        torch.cuda.synchronize()
        return self._shown(self.worker.results)

    def free_memory(self, message: Message, fds: list[int]) -> Message:
        self._kept, self.worker.results = [], None
        gpu_memory.forget()
        torch.cuda.empty_cache()
        return {}

    def answered(self, arguments: Any, differentiated: bool) -> Any:
        return self._differentiated(arguments) if differentiated else self._run(*arguments)

    def _run(self, *arguments: Any) -> Any:
        assert self.worker.run is not None
        return self.worker.run(*arguments)

    def _differentiated(self, values: Any) -> Any:
        assert self.worker.model is not None and self.worker.run is not None
        return differentiate(self.worker.run, weights_of(self.worker.model, self.worker.order), values)

    def timed(self, run: Callable[[Any], Any], message: Message) -> Message:
        """Run on the shared inputs, wait for the device, and describe the outputs."""
        arguments = wire.unpack(message["arguments"], self.worker.shared)
        self._kept, self.worker.results = [], None
        assert self._events is not None
        start, end = self._events
        seed_draws(message)
        if message.get("wake") and self._woken is not None:
            self._woken.zero_()
        start.record()
        self.worker.results = run(arguments)
        end.record()
        torch.cuda.synchronize()
        shown = self._shown(self.worker.results)
        device_ms = start.elapsed_time(end)
        return shown | {"device_ms": device_ms}

    def _shown(self, value: Any, waits: bool = True) -> Message:
        """Describe a value, whose tensors stay alive until the next question.

        Unless it `waits`, it raises `NoRoom` for tensors that must be copied first.
        """
        tensors: list[torch.Tensor] = []
        tree = wire.pack(value, tensors)
        if self._spill is not None:
            self._spill.clear()
        described = [gpu_memory.describe(tensor, self._spill, waits) for tensor in tensors]
        self._kept = [kept for _, kept in described]
        return {"tree": tree, "tensors": [said for said, _ in described]}


class Drawing:
    """The part of a reference: inputs and float64 results on the device."""

    def __init__(self, device: OnDevice) -> None:
        self._device = device
        self._reference: Any = device.worker

    def handlers(self) -> dict[str, Handler]:
        return {
            "layout": self.layout,
            "draw": self.draw,
            "size": self.size,
            "exact call": self.exact_call,
            "exact backward": self.exact_backward,
            "exact call elsewhere": lambda message, fds: self.exact_call(message | {"elsewhere": True}, fds),
            "exact backward elsewhere": lambda message, fds: self.exact_backward(message | {"elsewhere": True}, fds),
            "policy": self.policy,
        }

    def policy(self, message: Message, fds: list[int]) -> Message:
        return {"switches": fix_precision(message["precision"])}

    def layout(self, message: Message, fds: list[int]) -> Message:
        tensors: list[torch.Tensor] = []
        tree = wire.pack(self._drawn(message), tensors)
        return {
            "tree": tree,
            "layout": [[str(tensor.dtype).removeprefix("torch."), list(tensor.shape)] for tensor in tensors],
        }

    def draw(self, message: Message, fds: list[int]) -> Message:
        """Draw inputs under the given seed into the shared memory, for the judge to copy."""
        tensors: list[torch.Tensor] = []
        tree = wire.pack(self._drawn(message), tensors)
        for place, tensor in zip(self._device.worker.shared, tensors, strict=True):
            if place.shape != tensor.shape or place.dtype != tensor.dtype:
                raise wire.WireError("get_inputs returns tensors of another shape or dtype under another seed")
            place.copy_(tensor)
        torch.cuda.synchronize()
        return {"tree": tree}

    def _drawn(self, message: Message) -> Any:
        """Make the inputs on the device where the problem's code allows it; with `on_host`, without device memory."""
        if not message.get("on_host"):
            try:
                with torch.device("cuda"):
                    return self._reference.draw_values(message["seed"])
            except torch.OutOfMemoryError:
                raise  # others may free some
            except Exception:  # code for the host alone, such as a generator or an array
                pass
        return self._reference.draw_values(message["seed"])

    def size(self, message: Message, fds: list[int]) -> Message:
        """Return the bytes of a call on the shared inputs: result, float64 result, peak and weights.

        Results include an alignment for each tensor.
        """
        arguments = wire.unpack(message["arguments"], self._device.worker.shared)
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        with torch.set_grad_enabled(message["backward"]):
            results = self._device.answered(arguments, message["backward"])
        torch.cuda.synchronize()
        tensors = [leaf for leaf in tree_leaves(results) if isinstance(leaf, torch.Tensor)]
        room = gpu_memory.ALIGNMENT * len(tensors)
        state = dict.fromkeys([*self._reference.model.parameters(), *self._reference.model.buffers()])
        return {
            "result": room + sum(tensor.numel() * tensor.element_size() for tensor in tensors),
            "exact": room + sum(tensor.numel() * max(WIDEST_ITEM, tensor.element_size()) for tensor in tensors),
            "peak": torch.cuda.max_memory_allocated() - before,
            "weights": sum(tensor.numel() * tensor.element_size() for tensor in state),
        }

    def exact_call(self, message: Message, fds: list[int]) -> Message:
        with torch.no_grad():
            return self._exact(lambda model, arguments: self._reference.called(arguments, message), message)

    def exact_backward(self, message: Message, fds: list[int]) -> Message:
        order = self._reference.order
        return self._exact(lambda model, values: differentiate(model, weights_of(model, order), values), message)

    def _exact(self, call: Callable[[Any, Any], Any], message: Message) -> Message:
        """Run on the device, or on the processor where memory is too small, and move the result."""
        model = self._reference.model

        def here(arguments: Any) -> Any:
            with widened(model) as own:
                return own(call(model, tree_map(widened_value, arguments)))

        try:
            return self._device.timed(here, message) | {"where": "device"}
        except torch.OutOfMemoryError:
            if not message.get("elsewhere"):
                raise
        self._device.free_memory({}, [])
        model.cpu()
        try:
            return self._device.timed(lambda arguments: _to("cuda", here(_to("cpu", arguments))), message) | {
                "where": "processor"
            }
        finally:
            model.to("cuda")


def _to(device: str, tree: Any) -> Any:
    return tree_map(lambda leaf: leaf.to(device) if isinstance(leaf, torch.Tensor) else leaf, tree)
