"""One candidate on the device, in the jail, from source to what came of it: the judge's device half by itself."""

import os
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

from sandbox import zygote_start
from sandbox.children import ChildGone, ChildLate
from sandbox.compare import mismatch, tolerance_of
from sandbox.gpu.device import Device
from sandbox.gpu.session import DeviceTimed, GpuSession
from sandbox.peek import PeekError
from sandbox.sessions import Misbehaved, Refused, Session
from sandbox.settings import Settings
from sandbox.values import RawTensor, Values
from sandbox.workfolder import WorkFolder

SETTINGS = Settings(gpu=True, threads=2, call_timeout_s=10, build_timeout_s=300, start_timeout_s=120)
CALLS = 8


class Came(NamedTuple):
    """The stage that was reached (`passed` at the end), the reason, and the calls until then."""

    stage: str
    reason: str
    calls: tuple[DeviceTimed, ...]


def packed(inputs: list[torch.Tensor]) -> Values:
    return Values({"l": [{"t": i} for i in range(len(inputs))]}, tuple(RawTensor.of(x) for x in inputs))


class Reference:
    """A problem's own code in this process: trusted, on the processor."""

    def __init__(self, problem: Any) -> None:
        self.problem = problem
        self._namespace: dict[str, Any] = {}
        exec(compile(problem.source, problem.name, "exec"), self._namespace)
        self.model = self._namespace["Model"]()

    def draw(self) -> list[torch.Tensor]:
        return list(self._namespace["get_inputs"]())

    def expected(self, inputs: list[torch.Tensor], exact: bool) -> Values:
        model, given = self.model, inputs
        if exact:
            model, given = self._namespace["Model"]().double(), [x.double() for x in inputs]
            model.load_state_dict({name: value.double() for name, value in self.model.state_dict().items()})
        with torch.no_grad():
            result = model(*given)
        several = isinstance(result, tuple)
        tensors = result if several else (result,)
        tree = {"p": [{"t": i} for i in range(len(tensors))]} if several else {"t": 0}
        return Values(tree, tuple(RawTensor.of(tensor) for tensor in tensors))


@contextmanager
def gpu_workers():
    """Workers that can be asked for device calls."""
    before = zygote_start.MODULES["worker"]
    zygote_start.MODULES["worker"] = "sandbox.child.gpu_worker"
    try:
        yield
    finally:
        zygote_start.MODULES["worker"] = before


def judged(device: Device, problem: Any, source: str, build: bool = False, calls: int = CALLS) -> Came:
    """Load a candidate, call it on fresh inputs, compare every output. Nothing is timed but by the calls themselves."""
    reference, folder = Reference(problem), WorkFolder()
    done: list[DeviceTimed] = []
    stage = "build"
    try:
        message = {
            "source": str(folder.write("candidate.py", source)),
            "entry": "ModelNew",
            "built": str(folder.path / "build"),
            "threads": SETTINGS.threads,
            "cores": sorted(os.sched_getaffinity(0)),
            "arguments": {"l": []},
        }
        if build:
            with Session("builder", folder, SETTINGS) as builder:
                builder.greet()
                builder.ask(message | {"op": "build"}, SETTINGS.build_timeout_s)
        stage = "load"
        with gpu_workers(), GpuSession("worker", folder, SETTINGS, device) as session:
            session.greet()
            session.lend_device(packed(reference.draw()))
            size = sum(len(raw.data) + 64 for raw in reference.expected(reference.draw(), exact=False).tensors)
            session.lend_outputs(size)
            session.ask(message | {"op": "load"}, SETTINGS.start_timeout_s)
            state = reference.model.state_dict()
            if state:
                weights = packed(list(state.values()))
                session.ask({"op": "weights", "names": list(state)}, SETTINGS.start_timeout_s, weights)
            session.to_device(problem.precision)
            stage = "run"
            for _ in range(calls):
                inputs = reference.draw()
                done.append(session.device_call(packed(inputs), SETTINGS.call_timeout_s))
                exact, rounded = (reference.expected(inputs, wanted) for wanted in (True, False))
                wrong = mismatch(done[-1].output, exact, rounded, tolerance_of(problem))
                if wrong:
                    return Came("check", wrong.reason, tuple(done))
    except Refused as error:
        return Came(stage, f"{error.reason}\n{error.log}", tuple(done))
    except ChildLate:
        return Came(stage, "no answer within the limit", tuple(done))
    except (ChildGone, PeekError, Misbehaved) as error:
        return Came(stage, str(error), tuple(done))
    finally:
        folder.close()
    return Came("passed", "", tuple(done))
