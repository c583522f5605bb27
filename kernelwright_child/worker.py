"""A candidate's worker: builds `ModelNew`, takes weights, answers calls.

It knows the candidate's source, its constructor's arguments, weights and inputs. It knows no reference, no seed and
no expected value, so there is nothing here to steal.
"""

import os
import socket
import sys

from kernelwright_child.model_runner import ModelRunner
from kernelwright_child.wire import Handler, Message, serve, wait_for_a_build


def with_device(runner: ModelRunner) -> dict[str, Handler]:
    handlers = runner.handlers()

    def use_device(message: Message, fds: list[int]) -> Message:
        from kernelwright_child import gpu_worker

        gpu_worker.use_device(runner, handlers)
        return gpu_worker.get_ready(message["threads"]) if "threads" in message else {}

    handlers["use device"] = use_device
    return handlers


def main() -> None:
    """Serve on the inherited channel, then leave without running the candidate's exit handlers."""
    channel = socket.socket(fileno=int(sys.argv[1]))
    serve(channel, with_device(ModelRunner(lambda: wait_for_a_build(channel))))
    os._exit(0)
