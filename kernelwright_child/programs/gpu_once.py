"""The program below a tool: the candidate is called twice on given values, and then it ends.

`main([PLAN])`; PLAN is a file that `gpu_tool` wrote. Nothing is compared or timed here. The first call
compiles and tunes what compiles and tunes itself; a profiler looks at the second one alone.
"""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from kernelwright_child import wire
from kernelwright_child.casting import differentiate, lent_tensors, weights_of
from kernelwright_child.gpu.precision import fix_precision
from kernelwright_child.programs.model_runner import ModelRunner
from kernelwright_child.programs.serving import failure


def main(arguments: list[str]) -> None:
    """Exit code 0 where both calls came to their end; else the error's last line is printed, and it is 1."""
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
    """Something small that is right: whether the tool works here at all."""
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
    tensors = [tensor.to(device) for fd in _fds(values) for tensor in lent_tensors(fd, values["specs"])]
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
