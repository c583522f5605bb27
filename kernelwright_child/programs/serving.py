"""How a child answers the judge: one message after another, errors too, until the judge hangs up."""

import os
import re
import signal
import socket
import traceback
from collections.abc import Callable
from typing import Any, NoReturn

import torch

from kernelwright_child import vector_math, wire
from kernelwright_child.building import inline

Message = dict[str, Any]
Handler = Callable[[Message, list[int]], Message]
LOG_CHARACTERS = 24_000
TENSOR_DUMP = re.compile(r"tensor\(\[[^()]*\)")
"""Values in a message: pages of them, before the argument that is at fault."""


def serve(channel: socket.socket, handlers: dict[str, Handler]) -> None:
    """Greet, then answer one message after another until the judge hangs up. Errors are answers too."""
    vector_math.meet()
    wire.send(channel, {"pid": os.getpid()})
    while True:
        try:
            message, fds = wire.receive(channel)
        except EOFError:
            return
        try:
            answer = handlers[message["op"]](message, fds)
        except BaseException as error:  # SystemExit and KeyboardInterrupt of a candidate are its failures, not our end
            is_ours = isinstance(error, wire.WireError)
            answer = failure(error, unsupported=is_ours, compiling=inline.is_replayed(error), **_wants(error))
        try:
            wire.send(channel, answer)
        except wire.WireError as error:
            wire.send(channel, failure(error, unsupported=True))


def _wants(error: BaseException) -> Message:
    """What kind of room the error says is missing: `memory`, or `room` for so many bytes of outputs."""
    if isinstance(error, wire.NoRoom):
        return {"room": error.size}
    # torch tells of the host's memory in a RuntimeError like any other; there is nothing but its text to know it by.
    refused = isinstance(error, RuntimeError) and "DefaultCPUAllocator: can't allocate memory" in str(error)
    return {"memory": True} if refused or isinstance(error, MemoryError | torch.OutOfMemoryError) else {}


def wait_for_a_build(channel: socket.socket) -> NoReturn:
    """In the midst of a question: tell the judge that a call of the candidate's has been noted, and go no further."""
    wire.send(channel, {"unbuilt": True})
    while True:
        signal.pause()


def failure(error: BaseException, **more: Any) -> Message:
    """The message for an exception: its last line and the traceback's end.

    Exceptions of ours come without the name of their class, which says nothing to who has to mend the candidate.
    """
    kind = type(error)
    inner = f"{kind.__module__}.{kind.__qualname__}: " if kind.__module__.startswith("kernelwright_child.") else ""
    line = TENSOR_DUMP.sub("tensor(...)", traceback.format_exception_only(error)[-1].strip()).removeprefix(inner)
    log = TENSOR_DUMP.sub("tensor(...)", "".join(traceback.format_exception(error)))
    log = log.replace(inner, "") if inner else log
    return {"error": line[:2000], "log": log[-LOG_CHARACTERS:]} | more
