"""Memory that judging a problem takes: its needs, and the plan beforehand."""

from typing import NamedTuple

from pydantic import TypeAdapter, ValidationError

from kernelwright.problems import Problem
from kernelwright.problems.arithmetic import input_bytes
from kernelwright.sandbox.calls.sessions import Refused, Session
from kernelwright.sandbox.storage import Store, plan_key
from kernelwright.sandbox.verdict.errors import UnsupportedHere
from kernelwright.sandbox.verdict.memory import free_bytes, gib
from kernelwright.sandbox.verdict.settings import Settings

CONTEXT_BYTES = 640 * 2**20
"""Of each process that uses a device, before it has done anything."""
LOOK_BYTES = 3 * 2**29
"""On a device, for comparing: pieces of outputs in float64, and what is written to flush its cache."""
LARGE_BYTES = 2**30
"""Above this, memory that is kept only to be quicker is given back as soon as it is not used."""


class Needs(NamedTuple):
    """Memory of one call of the reference, in bytes."""

    inputs: int
    result: int
    exact: int
    """Of its result in float64."""
    peak: int
    """Result and all that lies between it and the inputs, at most at once."""
    weights: int
    scratch: int = 0
    """On a processor: what a convolution takes beside, which is kept for the next."""

    @property
    def exact_peak(self) -> int:
        """The same for a call in float64: widened inputs and weights, and wider results and intermediates."""
        return 2 * (self.inputs + self.peak + self.weights) + self.scratch

    @property
    def is_large(self) -> bool:
        """Whether memory is not to be kept for nothing."""
        return self.inputs + self.peak + self.weights > LARGE_BYTES


class ProcessBytes(NamedTuple):
    """Memory that processes take whatever the problem, in bytes."""

    child: int
    judge: int


ON_DEVICE, ON_HOST = ProcessBytes(CONTEXT_BYTES, CONTEXT_BYTES + LOOK_BYTES), ProcessBytes(2**25, 2**28)
"""On the host children share what they have imported."""
EXACT_COPIES = 2.5
"""Float64 results that the judge holds on the host for an output that is too far off: that on the inputs, that on
shaken ones, and in float32 how far the two are apart."""


def taken_bytes(needs: Needs, references: int, own: ProcessBytes) -> int:
    """Bytes that judging takes while this number of references keep what their calls need.

    Inputs are there four times: shared with the candidate and to all references, held by the judge, and once more while
    they are drawn or a family is made of them. The judge has a copy of the candidate's result; the candidate is granted
    what a reference takes. Where there are several references on a device, a check in float64 must fit beside them; a
    single one gives back what it has first. On the host it must fit beside any number, in place of the call of one,
    and the judge has copies of all results, and of weights, which are changed into others.
    """
    child = needs.weights + needs.peak + own.child
    judge = 4 * needs.inputs + needs.result + own.judge
    beside = needs.exact_peak + needs.exact + needs.result if references > 2 else 0
    if own == ON_HOST:
        kept = int(EXACT_COPIES * needs.exact) + needs.result + 2 * needs.weights
        beside = needs.exact_peak - needs.peak + kept
    return judge + (references + 1) * child + beside


def references_kept(needs: Needs, wanted: int, free_bytes: int, own: ProcessBytes) -> int:
    """Number of references that fit at once, at most `wanted`; 0 where not even one does."""
    fitting = (count for count in range(wanted, 0, -1) if taken_bytes(needs, count, own) <= free_bytes)
    return next(fitting, 0)


def holds_another(needs: Needs, references: int, free_bytes: int, own: ProcessBytes) -> bool:
    """Whether beside that a worker may stand that has nothing but its process."""
    return not needs.is_large and taken_bytes(needs, references, own) + own.child <= free_bytes


def child_bytes(needs: Needs) -> int:
    """Host memory in bytes of a reference that computes on the processor, in float64 too."""
    return needs.weights + needs.inputs + needs.peak + needs.exact_peak + ON_HOST.child


def refusal(name: str, needs: Needs, free_bytes: int, own: ProcessBytes) -> str:
    """The sentence for a problem that does not fit."""
    where, other = ("the device", "") if own == ON_DEVICE else ("this machine", ", or a GPU")
    return (
        f"judging {name} takes {gib(taken_bytes(needs, 1, own))} of memory (a call has {gib(needs.inputs)} of inputs, "
        f"{gib(needs.weights)} of weights and takes {gib(needs.peak)} beside them) and {where} has "
        f"{gib(free_bytes)}; use one with more{other}, or make the problem smaller"
    )


def child_refusal(name: str, needs: Needs, limit_bytes: int, inputs_only: bool = False) -> str:
    """The sentence for a reference that is too large for a child; `inputs_only` where nothing else of it is known."""
    of = f"{gib(needs.inputs)} of inputs, {gib(needs.weights)} of weights and takes {gib(needs.peak)} beside them"
    least, call = "", f"a call has {of}"
    if inputs_only:
        least, call = "at least ", f"its inputs alone have {gib(needs.inputs)}"
    return (
        f"the reference of {name} takes {least}{gib(child_bytes(needs))} of memory in float64 ({call}) and a child may "
        f"take {gib(limit_bytes)}; give more with --memory, or use a machine that has more"
    )


CERTAIN_BYTES = 2**26
"""Inputs and weights below this are no reason to look closer before something runs: to look takes seconds."""
HALVES = ("float16", "bfloat16")


def require_room(
    problem: Problem, settings: Settings, session: Session, source: str, certain_bytes: int = CERTAIN_BYTES
) -> None:
    """Raise `UnsupportedHere` where a reference with large inputs takes more of the host's memory than there is.

    Asked of a child that has loaded nothing yet; `source` is the path of the reference. `certain_bytes`: 0 to look
    closer whatever the inputs.
    """
    if input_bytes(problem.source) < certain_bytes:
        return
    if said := refusal_by_text(problem, settings):
        raise UnsupportedHere(said)
    needs = planned(problem, session, source, settings.start_timeout_s)
    if needs is None:
        return
    if child_bytes(needs) > settings.memory_bytes:
        raise UnsupportedHere(child_refusal(problem.name, needs, settings.memory_bytes))
    if references_kept(needs, 1, there := free_bytes(), ON_HOST) == 0:
        raise UnsupportedHere(refusal(problem.name, needs, there, ON_HOST))


def refusal_by_text(problem: Problem, settings: Settings) -> str | None:
    """The same refusal where the inputs that the text shows are enough for it, and no child need be asked."""
    if settings.gpu:
        return None
    shown = input_bytes(problem.source) // (2 if problem.dtype in HALVES else 1)
    least = Needs(inputs=shown, result=0, exact=0, peak=0, weights=0)
    if child_bytes(least) <= settings.memory_bytes:
        return None
    return child_refusal(problem.name, least, settings.memory_bytes, inputs_only=True)


def planned(problem: Problem, session: Session, source: str, timeout_s: float) -> Needs | None:
    """Plan the memory of a call by its shapes, in a child, and remember it; None where that is not possible."""
    store, key = Store("needs"), plan_key(problem.digest)
    kept = store.get(key)
    if kept is None:
        question = {
            "op": "plan",
            "source": source,
            "dtype": problem.dtype,
            "backward": problem.direction != "forward",
        }
        try:
            kept = session.ask(question, timeout_s).get("plan")
        except Refused:
            kept = {}
        store.put(key, kept if isinstance(kept, dict) else {})
    try:
        return TypeAdapter(Needs).validate_python(kept)
    except ValidationError:
        return None
