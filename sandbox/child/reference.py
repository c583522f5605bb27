"""The reference worker: inputs, expected values and the baseline's time come from here.

`python -I -m sandbox.child.reference FD`. It runs the problem's own code and never meets a candidate.
"""

import copy
import os
import socket
import sys
from typing import Any

import torch

from sandbox.child import wire
from sandbox.child.worker import Handler, Message, Worker, place, run_source, serve


class Reference(Worker):
    """A worker that can also draw inputs and compute in float64."""

    def __init__(self) -> None:
        super().__init__()
        self.namespace: dict[str, Any] = {}
        self.exact: torch.nn.Module | None = None
        self.drawn: Any = None

    def handlers(self) -> dict[str, Handler]:
        """What the judge may ask."""
        return {"load": self.load, "draw": self.draw, "lend": self.lend, "call": self.call, "exact": self.call_exact}

    def load(self, message: Message, fds: list[int]) -> Message:
        """Run the reference and construct `Model` under the given seed; tells arguments and weights."""
        torch.set_num_threads(message["threads"])
        self.namespace = run_source(message["source"], "reference")
        torch.manual_seed(message["seed"])
        arguments = self.namespace["get_init_inputs"]()
        self.model = self.namespace["Model"](*arguments)
        self.drawn = [list(arguments), dict(self.model.state_dict())]
        return place(self.drawn)

    def draw(self, message: Message, fds: list[int]) -> Message:
        """Fresh inputs under the given seed."""
        torch.manual_seed(message["seed"])
        self.drawn = list(self.namespace["get_inputs"]())
        return place(self.drawn)

    def call_exact(self, message: Message, fds: list[int]) -> Message:
        """Call a float64 copy of the model on the lent inputs, floating ones widened."""
        assert self.model is not None
        if self.exact is None:
            self.exact = copy.deepcopy(self.model).double()
        arguments = wire.unpack(message["arguments"], [_widened(tensor) for tensor in self.lent])
        self.results = None
        with torch.no_grad():
            self.results = self.exact(*arguments)
        return place(self.results)


def _widened(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.double() if tensor.is_floating_point() else tensor


def main() -> None:
    """Serve on the inherited channel."""
    serve(socket.socket(fileno=int(sys.argv[1])), Reference().handlers())
    os._exit(0)


if __name__ == "__main__":
    main()
