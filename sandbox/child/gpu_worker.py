"""What a worker can be asked on a GPU, beside its other questions. `python -I -m sandbox.child.gpu_worker FD`.

The candidate shares this process and may change all of it. Nothing here is relied on: the judge looks at the outputs
itself, before it stops its clock and after.
"""

import copy
import os
import socket
import sys
from typing import Any

import torch
from torch.utils._pytree import tree_map

from sandbox.child import gpu_memory, wire
from sandbox.child.gpu_precision import fix_precision
from sandbox.child.gpu_profile import kernels
from sandbox.child.worker import Handler, Message, Worker, serve


class OnDevice:
    """The GPU's part of a worker; holds the memory that is lent to it."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._borrowed: gpu_memory.Borrowed | None = None
        self._spill: gpu_memory.Spill | None = None
        self._exact: torch.nn.Module | None = None
        self._kept: list[torch.Tensor] = []
        """Outputs that the judge may still look at."""

    def handlers(self) -> dict[str, Handler]:
        """What the judge may ask."""
        return {
            "to device": self.to_device,
            "lend device": self.lend_device,
            "lend outputs": self.lend_outputs,
            "trial": self.trial,
            "copy outputs": self.copy_outputs,
            "device call": self.device_call,
            "device burst": self.device_burst,
            "device exact": self.device_exact,
            "kernels": self.kernels,
        }

    def to_device(self, message: Message, fds: list[int]) -> Message:
        """Fix the precision and move the model, weights and all; tells torch's switches. After `weights`, if any."""
        assert self._worker.model is not None
        switches = fix_precision(message["precision"])
        self._worker.model.to("cuda")
        self._exact = None
        torch.cuda.synchronize()
        return {"switches": switches}

    def lend_device(self, message: Message, fds: list[int]) -> Message:
        """Map the device memory that inputs will appear in."""
        self._borrowed = gpu_memory.Borrowed(fds[0], message["bytes"], message["specs"])
        os.close(fds[0])
        self._worker.lent = self._borrowed.tensors
        return {}

    def lend_outputs(self, message: Message, fds: list[int]) -> Message:
        """Map device memory for outputs that the judge could not map where they are."""
        self._spill = gpu_memory.Spill(gpu_memory.Borrowed(fds[0], message["bytes"], message["specs"]))
        os.close(fds[0])
        return {}

    def trial(self, message: Message, fds: list[int]) -> Message:
        """A small tensor as outputs are shown, for the judge to try to map."""
        self._kept = [torch.ones(1024, device="cuda")]
        torch.cuda.synchronize()
        return {"tensors": [gpu_memory.describe(self._kept[0])[0]]}

    def copy_outputs(self, message: Message, fds: list[int]) -> Message:
        """From now on put all outputs into the memory that was lent for them."""
        assert self._spill is not None
        self._spill.takes_all = True
        return {}

    def device_call(self, message: Message, fds: list[int]) -> Message:
        """One call on the lent inputs; `device_ms` is by the device's events, if the candidate left them alone."""
        return self._timed(lambda arguments: self._run(*arguments), message)

    def device_burst(self, message: Message, fds: list[int]) -> Message:
        """One call for each of a list of arguments, one after another, all outputs kept."""
        return self._timed(lambda calls: [self._run(*arguments) for arguments in calls], message)

    def device_exact(self, message: Message, fds: list[int]) -> Message:
        """One call of a float64 copy of the model, floating inputs widened; for references."""
        if self._exact is None:
            self._exact = copy.deepcopy(self._worker.model).double()  # type: ignore[union-attr]
        exact = self._exact
        return self._timed(lambda arguments: exact(*tree_map(_widened, arguments)), message)

    def kernels(self, message: Message, fds: list[int]) -> Message:
        """The kernels of a call on the lent inputs as they lie there."""
        arguments = wire.unpack(message["arguments"], self._worker.lent)
        with torch.no_grad():
            return {"kernels": kernels(lambda: self._run(*arguments))[:64]}

    def _run(self, *arguments: Any) -> Any:
        assert self._worker.run is not None
        return self._worker.run(*arguments)

    def _timed(self, run: Any, message: Message) -> Message:
        arguments = wire.unpack(message["arguments"], self._worker.lent)
        self._kept, self._worker.results = [], None
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        with torch.no_grad():
            start.record()
            self._worker.results = run(arguments)
            end.record()
        torch.cuda.synchronize()
        tensors: list[torch.Tensor] = []
        tree = wire.pack(self._worker.results, tensors)
        if self._spill is not None:
            self._spill.clear()
        described = [gpu_memory.describe(tensor, self._spill) for tensor in tensors]
        self._kept = [kept for _, kept in described]
        return {"tree": tree, "tensors": [said for said, _ in described], "device_ms": start.elapsed_time(end)}


def _widened(leaf: Any) -> Any:
    return leaf.double() if isinstance(leaf, torch.Tensor) and leaf.is_floating_point() else leaf


def main() -> None:
    """Serve on the inherited channel, then leave without running the candidate's exit handlers."""
    channel = socket.socket(fileno=int(sys.argv[1]))
    worker = Worker()
    serve(channel, worker.handlers() | OnDevice(worker).handlers())
    os._exit(0)


if __name__ == "__main__":
    main()
