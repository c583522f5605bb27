"""The messages between judge and child, and how a child answers one after another until the judge hangs up.

A message is one JSON object a packet, with values as small trees and tensors by reference. A tree is one of `{"t": i}`
(tensor number i), `{"v": scalar}`, `{"l": [...]}` (list), `{"p": [...]}` (tuple), `{"d": [[key, tree], ...]}` (dict)
and `{"dtype": name}`. Nothing is ever unpickled.
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
"""The largest message; a longer one is refused by whoever would send it."""

RESULT, CHANGED_INPUT = "the result", "input {} after the call"
"""Keys of the tree that a reference's result has where calls change inputs in place."""

Tree = dict[str, Any]
Message = dict[str, Any]
Handler = Callable[[Message, list[int]], Message]
LOG_CHARACTERS = 24_000
TENSOR_DUMP = re.compile(r"tensor\(\[[^()]*\)")
"""Values in a message: pages of them, before the argument that is at fault."""
VECTOR_FUNCTIONS = (
    "acos", "asin", "atan", "cos", "cosh", "erf", "erfc", "erfinv", "exp", "expm1", "lgamma", "log", "log10", "log1p",
    "log2", "rsqrt", "sigmoid", "sin", "sinh", "sqrt", "tan", "tanh",
)  # fmt: skip

_resolved: list[torch.Tensor] = []
"""What an answer describes in place of a value that was returned, alive until the next question has come."""


class WireError(ValueError):
    """A value or message that the wire does not carry."""


class NoRoom(WireError):
    """An output of `size` bytes lies where the judge cannot look, and no memory is shared to copy it to."""

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
        f"a value of type {type(value).__name__} can not be handed over; use tensors, numbers, strings, None"
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
    """Raise `WireError` for a value whose bytes on the device do not say what it is."""
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or tensor.layout != torch.strided:
        raise WireError(f"a {type(tensor).__name__} of layout {tensor.layout} is no plain tensor")
    if tensor.is_quantized or tensor.is_nested:
        kind = "quantized" if tensor.is_quantized else "nested"
        raise WireError(f"a {kind} tensor is no plain tensor; return the values that it stands for as one")
    if tensor.device.type != device:
        raise WireError(f"a tensor on {tensor.device} was returned where one on {device} is wanted")


def resolved(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor with its bytes as its values: negation and conjugation that torch has only noted are done."""
    if not (tensor.is_conj() or tensor.is_neg()):
        return tensor
    return tensor.detach().resolve_conj().resolve_neg()


def describe(tensor: torch.Tensor) -> dict[str, Any]:
    """Return where a CPU tensor lies in this process's memory: dtype, shape, stride (elements) and address.

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
    """Greet, then answer one message after another until the judge hangs up. Errors are answers too."""
    meet_vector_functions()
    send(channel, {"pid": os.getpid()})
    while True:
        try:
            message, fds = receive(channel)
        except EOFError:
            return
        try:
            answer = handlers[message["op"]](message, fds)
        except BaseException as error:  # SystemExit and KeyboardInterrupt of a candidate are its failures, not our end
            is_ours = isinstance(error, WireError)
            answer = failure(error, unsupported=is_ours, compiling=is_replayed(error), **_wants(error))
        try:
            send(channel, answer)
        except WireError as error:
            send(channel, failure(error, unsupported=True))


def _wants(error: BaseException) -> Message:
    """Return what the error says is missing: `memory`, or `room` for as many bytes of outputs."""
    if isinstance(error, NoRoom):
        return {"room": error.size}
    # torch tells of the host's memory in a RuntimeError like any other; there is nothing but its text to know it by.
    refused = isinstance(error, RuntimeError) and "DefaultCPUAllocator: can't allocate memory" in str(error)
    return {"memory": True} if refused or isinstance(error, MemoryError | torch.OutOfMemoryError) else {}


def wait_for_a_build(channel: socket.socket) -> NoReturn:
    """Tell the judge, in the midst of a question, that a call of the candidate's is noted, and go no further."""
    send(channel, {"unbuilt": True})
    while True:
        signal.pause()


def failure(error: BaseException, **more: Any) -> Message:
    """Return the message for an exception: its last line and the traceback's end.

    Exceptions of ours come without the name of their class, which does not help to mend the candidate.
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
    """Whether it is the error of a build (see `kernelwright_child.builder.replayed`), or was raised over one."""
    return any(getattr(one, "of_a_build", False) for one in causes(error))


def meet_vector_functions() -> None:
    """Call each once on this thread, before there are several: 14 ms the first time in a process and its forks.

    The library behind them sets itself up in their first use. Where that use was a child's first parallel operation,
    one thread's part of it came out less exact than every later time (`tanh`: the first half of the rows off by 1e-5).
    """
    few = 64  # no operator shares so few elements among threads
    with torch.no_grad():
        for dtype in (torch.float32, torch.float64):
            values = torch.full((few,), 0.5, dtype=dtype)
            for name in VECTOR_FUNCTIONS:
                getattr(torch, name)(values)
