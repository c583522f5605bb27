"""The builder: imports the candidate and constructs it once, so that its extensions compile.

Another one makes the call that a worker has noted, where an extension is built only later.
`python -I -m kernelwright_child.builder FD`. It gets no inputs and no weights; what it makes
are files in the work folder.
"""

import contextlib
import os
import socket
import sys

from kernelwright_child import compiling, inline, wire
from kernelwright_child.casting import lent_tensors
from kernelwright_child.model_runner import construct, run_source
from kernelwright_child.wire import Message, failure, serve


def build(message: Message, fds: list[int]) -> Message:
    """Import and construct; an error says whether a compilation raised it.

    The message's `shortcuts`, where there are any, are a plan for `kernelwright_child.compiling`.
    """
    compiling.install_shortcuts(message.get("shortcuts", {}), os.environ["HOME"])
    recorder = inline.record(message["built"])
    try:
        tensors = lent_tensors(fds[0], message["specs"]) if fds else []
        namespace = run_source(message["source"], "candidate")
        construct(namespace[message["entry"]], wire.unpack(message["arguments"], tensors))
    except BaseException as error:
        answer = failure(error, compiling=bool(recorder.failures))
        beside = recorder.words_beside(error)
        return answer | {"log": f"{beside}\n{answer['log']}"} if beside else answer
    return {}


def build_noted(message: Message, fds: list[int]) -> Message:
    """Make a worker's call. An error of it stands in the index, and is the candidate's to meet."""
    compiling.install_shortcuts(message.get("shortcuts", {}), os.environ["HOME"])
    with contextlib.suppress(BaseException):
        inline.build_noted(message["built"])
    return {}


def main() -> None:
    """Serve on the inherited channel, then leave without running the candidate's exit handlers."""
    serve(socket.socket(fileno=int(sys.argv[1])), {"build": build, "build noted": build_noted})
    os._exit(0)


if __name__ == "__main__":
    main()
