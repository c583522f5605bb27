"""A tool of the CUDA toolkit around a program that calls the candidate.

`Tools` is for a child that runs nothing of the candidate; it starts the tool, and below it the program `main`, in the
same jail. They and their report belong to the candidate's user, so the report is not trusted.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from kernelwright_child import wire
from kernelwright_child.model_runner import ModelRunner
from kernelwright_child.models import differentiate, fix_precision, shared_tensors, weights_of
from kernelwright_child.wire import Handler, Message, failure

START = (
    f"import sys; sys.path.insert(0, {str(Path(__file__).parent.parent)!r}); "
    "from kernelwright_child.gpu_tool import main; main(sys.argv[1:])"
)
START_BYTES, END_BYTES = 120_000, 4000
"""Characters of a report, and of the end of the output, which share one message."""


class Tools:
    def __init__(self) -> None:
        self._kept: dict[str, dict[str, Any]] = {}

    def handlers(self) -> dict[str, Handler]:
        return {"keep": self.keep, "under tool": self.run}

    def keep(self, message: Message, fds: list[int]) -> Message:
        """Keep the memory of a tree's tensors for the program to map, since a tool may not pass descriptors on."""
        path = f"/proc/{os.getpid()}/fd/{fds[0]}" if fds else None
        self._kept[message["name"]] = {"tree": message["tree"], "path": path, "specs": message.get("specs", [])}
        return {}

    def run(self, message: Message, fds: list[int]) -> Message:
        """Return the exit code of the tool, its report, and the end of its output and the program's.

        `command` is the prefix of the program's command line, `environment` its additional variables, and `plan` is for
        `main`; `{report}` is replaced by the report's file.
        """
        os.sched_setaffinity(0, message["cores"])
        folder = Path(os.environ["TMPDIR"])
        plan, report, printed = (folder / name for name in ("plan.json", "report.txt", "printed.txt"))
        plan.write_text(json.dumps(message["plan"] | {"kept": self._kept}))
        report.unlink(missing_ok=True)
        front = [word.replace("{report}", str(report)) for word in message["command"]]
        with printed.open("wb") as output:
            done = subprocess.run(
                [*front, sys.executable, "-I", "-c", START, str(plan)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **message["environment"]},
                check=False,
            )
        return {"code": done.returncode, "report": _text(report), "printed": _text(printed)[-END_BYTES:]}


def _text(path: Path) -> str:
    """Return the start and the end of a file; empty for an unreadable one."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(fd, "rb") as file:
            head = file.read(START_BYTES)
            size = file.seek(0, os.SEEK_END)
            file.seek(max(len(head), size - END_BYTES))
            return (head + file.read(END_BYTES)).decode(errors="replace")
    except (OSError, ValueError):
        return ""


def main(arguments: list[str]) -> None:
    """Call the candidate twice by the file `[PLAN]`; where it fails, print the error and exit with code 1.

    The first call may compile and tune; a profiler sees only the second one.
    """
    plan = json.loads(Path(arguments[0]).read_text())
    try:
        call, wait = (_trial if plan["trial"] else _candidate)(plan), _waiting(plan["device"])
        call()
        wait()
        _mark(plan["device"], "Start")
        call()
        wait()
        _mark(plan["device"], "Stop")
    except BaseException as error:
        print(failure(error)["error"], file=sys.stderr, flush=True)
        sys.exit(1)


def _trial(plan: dict[str, Any]) -> Callable[[], object]:
    values = torch.ones(2**20, device=plan["device"])
    return lambda: values.mul_(2)


def _candidate(plan: dict[str, Any]) -> Callable[[], object]:
    kept, device, runner = plan["kept"], plan["device"], ModelRunner()
    runner.load(
        plan["load"] | {"arguments": kept["arguments"]["tree"], "specs": kept["arguments"]["specs"]},
        _fds(kept["arguments"]),
    )
    if "weights" in kept:
        runner.weights({"names": plan["weights"], "specs": kept["weights"]["specs"]}, _fds(kept["weights"]))
    fix_precision(plan["precision"])
    assert runner.model is not None and runner.run is not None
    run, model = runner.run, runner.model.to(device)
    values = kept["values"]
    tensors = [tensor.to(device) for fd in _fds(values) for tensor in shared_tensors(fd, values["specs"])]
    given = wire.unpack(values["tree"], tensors)
    if plan["gradients"]:
        return lambda: differentiate(run, weights_of(model, runner.order), given)

    def call() -> object:
        with torch.no_grad():
            return run(*given)

    return call


def _fds(kept: dict[str, Any]) -> list[int]:
    return [os.open(kept["path"], os.O_RDWR | os.O_CLOEXEC)] if kept["path"] else []


def _waiting(device: str) -> Callable[[], None]:
    return torch.cuda.synchronize if device == "cuda" else lambda: None


def _mark(device: str, which: str) -> None:
    if device == "cuda":
        getattr(torch.cuda.cudart(), f"cudaProfiler{which}")()  # type: ignore[no-untyped-call]
