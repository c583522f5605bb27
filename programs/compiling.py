"""What torch.compile makes of a part, measured as the judge measures: the problem alone, in the jail."""

from contextlib import closing
from pathlib import Path

from kernelwright.problems import load_problem
from kernelwright.programs.record import Part
from kernelwright.sandbox.calls.backend import device_held
from kernelwright.sandbox.calls.reference import ReferenceSession
from kernelwright.sandbox.calls.sessions import Misbehaved, Refused
from kernelwright.sandbox.jail.children import ChildGone, ChildLate
from kernelwright.sandbox.timing.compiled import compiled_reference
from kernelwright.sandbox.verdict.errors import BrokenProblem, UnsupportedHere, UnsupportedProblem
from kernelwright.sandbox.verdict.settings import Settings

ROUNDS = 9
REFUSED = (BrokenProblem, UnsupportedHere, UnsupportedProblem, Misbehaved, Refused, ChildGone, ChildLate)


def speedup_of_compile(folder: Path, part: Part, settings: Settings) -> float | None:
    """How many times as fast as eager it is, by the least of a few turns each; None where it can not compile the part.

    Raises `MachineError`.
    """
    problem = load_problem(str(folder / part.problem))
    try:
        with (
            device_held(settings),
            closing(ReferenceSession(problem, settings)) as eager,
            closing(compiled_reference(problem, settings, "default")) as compiled,
        ):
            values = eager.draw()
            times = [(eager.call_ms(values), compiled.call_ms(values)) for _ in range(ROUNDS)]
            nothing_ms = min(eager.nothing_ms() for _ in range(ROUNDS))
    except REFUSED:
        return None
    mine, theirs = (max(1e-6, min(column) - nothing_ms) for column in zip(*times, strict=True))
    return float(mine / theirs)
