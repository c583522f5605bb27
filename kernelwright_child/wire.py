"""The messages between judge and child, and the loop in which a child answers them until the judge closes the channel.

A message is one JSON object per packet, with values as small trees and tensors by reference. A tree is one of
`{"t": i}` (tensor number i), `{"v": scalar}`, `{"l": [...]}` (list), `{"p": [...]}` (tuple), `{"d": [[key, tree],
...]}` (dict) and `{"dtype": name}`. Nothing is ever unpickled.
"""

import json
import os
import re
import signal
import socket
import traceback
from collections.abc import Callable
from typing import Any, NoReturn

import torch

PACKET_BYTES = 160 * 1024
"""The largest message; the sender refuses a longer one."""

RESULT, CHANGED_INPUT = "the result", "input {} after the call"
"""Keys of the tree that a reference's result has where calls change inputs in place."""

Tree = dict[str, Any]
Message = dict[str, Any]
Handler = Callable[[Message, list[int]], Message]
LOG_CHARACTERS = 24_000
TENSOR_DUMP = re.compile(r"tensor\(\[[^()]*\)")
"""Values in an error's text, which can fill pages before the argument at fault."""
VECTOR_FUNCTIONS = (
    "acos", "asin", "atan", "cos", "cosh", "erf", "erfc", "erfinv", "exp", "expm1", "lgamma", "log", "log10", "log1p",
    "log2", "rsqrt", "sigmoid", "sin", "sinh", "sqrt", "tan", "tanh",
)  # fmt: skip

_resolved: list[torch.Tensor] = []
"""Resolved tensors that an answer describes in place of returned ones, alive until the next question."""


class WireError(ValueError):
    """A value or message that cannot be sent."""


class NoRoom(WireError):
    """The judge cannot read an output of `size` bytes, and no memory is shared to copy it to."""

    def __init__(self, size: int) -> None:
        super().__init__(f"an output of {size} bytes is larger than the memory that is shared for it")
        self.size = size


def send(channel: socket.socket, message: dict[str, Any], fds: tuple[int, ...] = ()) -> None:
    data = json.dumps(message).encode()
    if len(data) > PACKET_BYTES:
        raise WireError(f"a message of {len(data)} bytes is longer than {PACKET_BYTES}")
    if fds:
        socket.send_fds(channel, [data], list(fds))
    else:
        channel.send(data)


def receive(channel: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Wait for one message; `EOFError` where the other side has gone."""
    data, fds, _, _ = socket.recv_fds(channel, PACKET_BYTES, 4)
    if not data:
        raise EOFError("the judge has closed the channel")
    _resolved.clear()
    return json.loads(data), fds


def pack(value: Any, tensors: list[torch.Tensor]) -> Tree:
    """Return the tree of `value`; its tensors are appended to `tensors`."""
    if isinstance(value, torch.Tensor):
        tensors.append(value)
        return {"t": len(tensors) - 1}
    if value is None or isinstance(value, bool | int | float | str):
        return {"v": value}
    if isinstance(value, list):
        return {"l": [pack(item, tensors) for item in value]}
    if isinstance(value, tuple):
        return {"p": [pack(item, tensors) for item in value]}
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {"d": [[key, pack(item, tensors)] for key, item in value.items()]}
    if isinstance(value, torch.dtype):
        return {"dtype": str(value).removeprefix("torch.")}
    raise WireError(
        f"a value of type {type(value).__name__} cannot be handed over; use tensors, numbers, strings, None"
    )


def unpack(tree: Tree, tensors: list[torch.Tensor]) -> Any:
    """Return the value of a tree that `pack` made, over the given tensors."""
    ((kind, body),) = tree.items()
    if kind == "t":
        return tensors[body]
    if kind == "v":
        return body
    if kind == "dtype":
        return getattr(torch, body)
    if kind == "d":
        return {key: unpack(item, tensors) for key, item in body}
    items = [unpack(item, tensors) for item in body]
    return items if kind == "l" else tuple(items)


def refuse_unplain(tensor: torch.Tensor, device: str) -> None:
    """Raise `WireError` for a tensor that its raw bytes on the device do not determine."""
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or tensor.layout != torch.strided:
        raise WireError(f"a {type(tensor).__name__} of layout {tensor.layout} is not a plain tensor")
    if tensor.is_quantized or tensor.is_nested:
        kind = "quantized" if tensor.is_quantized else "nested"
        raise WireError(f"a {kind} tensor is not a plain tensor; return its values as one")
    if tensor.device.type != device:
        raise WireError(f"a tensor on {tensor.device} was returned where one on {device} is wanted")


def resolved(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor with negation and conjugation applied, which torch may only have noted."""
    if not (tensor.is_conj() or tensor.is_neg()):
        return tensor
    return tensor.detach().resolve_conj().resolve_neg()


def describe(tensor: torch.Tensor) -> dict[str, Any]:
    """Return dtype, shape, stride (elements) and address of a CPU tensor in this process.

    Resolving it, where needed, is part of a call's time.
    """
    refuse_unplain(tensor, "cpu")
    plain = resolved(tensor)
    if plain is not tensor:
        _resolved.append(plain)
        tensor = plain
    return {
        "dtype": str(tensor.dtype).removeprefix("torch."),
        "shape": list(tensor.shape),
        "stride": list(tensor.stride()),
        "address": tensor.data_ptr(),
    }


def serve(channel: socket.socket, handlers: dict[str, Handler]) -> None:
    """Greet, then answer messages until the judge closes the channel. Errors are answers too."""
    call_vector_functions()
    send(channel, {"pid": os.getpid()})
    while True:
        try:
            message, fds = receive(channel)
        except EOFError:
            return
        try:
            answer = handlers[message["op"]](message, fds)
        except BaseException as error:  # SystemExit and KeyboardInterrupt of a candidate are its failures
            is_ours = isinstance(error, WireError)
            answer = failure(error, unsupported=is_ours, compiling=is_replayed(error), **_wants(error))
        try:
            send(channel, answer)
        except WireError as error:
            send(channel, failure(error, unsupported=True))


def _wants(error: BaseException) -> Message:
    """Return the memory that was missing: `memory`, or `room` with the bytes of an output."""
    if isinstance(error, NoRoom):
        return {"room": error.size}
    # torch reports a lack of host memory as a plain RuntimeError, which only its text distinguishes.
    refused = isinstance(error, RuntimeError) and "DefaultCPUAllocator: can't allocate memory" in str(error)
    return {"memory": True} if refused or isinstance(error, MemoryError | torch.OutOfMemoryError) else {}


def wait_for_a_build(channel: socket.socket) -> NoReturn:
    """Report during a question that a build of the candidate was noted, and wait for the end."""
    send(channel, {"unbuilt": True})
    while True:
        signal.pause()


def failure(error: BaseException, **more: Any) -> Message:
    """Return the message for an exception: its last line and the end of the traceback.

    Exceptions of this package come without their class name, which does not help to fix the candidate.
    """
    kind = type(error)
    inner = f"{kind.__module__}.{kind.__qualname__}: " if kind.__module__.startswith("kernelwright_child.") else ""
    line = TENSOR_DUMP.sub("tensor(...)", traceback.format_exception_only(error)[-1].strip()).removeprefix(inner)
    log = TENSOR_DUMP.sub("tensor(...)", "".join(traceback.format_exception(error)))
    log = log.replace(inner, "") if inner else log
    return {"error": line[:2000], "log": log[-LOG_CHARACTERS:]} | more


def causes(error: BaseException | None) -> list[BaseException]:
    found: list[BaseException] = []
    while error is not None and error not in found:
        found.append(error)
        error = error.__cause__ or error.__context__
    return found


def is_replayed(error: BaseException) -> bool:
    """Check for an error of a build (`kernelwright_child.builder.replayed`), or one that it caused."""
    return any(getattr(one, "of_a_build", False) for one in causes(error))


def call_vector_functions() -> None:
    """Call each once on this thread before others start: 14 ms the first time in a process and its forks.

    Their library initialises itself at the first use. Where that was a child's first parallel operation, one thread's
    part was less exact than later (`tanh`: the first half of the rows off by 1e-5).
    """
    few = 64  # too few elements for several threads
    with torch.no_grad():
        for dtype in (torch.float32, torch.float64):
            values = torch.full((few,), 0.5, dtype=dtype)
            for name in VECTOR_FUNCTIONS:
                getattr(torch, name)(values)
