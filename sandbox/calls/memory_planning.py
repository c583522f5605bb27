"""What a problem takes of memory before anything of it runs for real, and the refusal where there is not enough."""

from pydantic import TypeAdapter, ValidationError

from kernelwright.problems import Problem
from kernelwright.problems.texts.arithmetic import input_bytes
from kernelwright.sandbox.calls.memory_needs import (
    ON_HOST,
    Needs,
    child_bytes,
    child_refusal,
    references_kept,
    refusal,
)
from kernelwright.sandbox.calls.sessions import Refused, Session
from kernelwright.sandbox.machine.fact_store import Store, plan_key
from kernelwright.sandbox.verdict.errors import UnsupportedHere
from kernelwright.sandbox.verdict.memory import free_bytes
from kernelwright.sandbox.verdict.settings import Settings

CERTAIN_BYTES = 2**26
"""Inputs and weights below this are no reason to look closer before something runs: to look takes seconds."""
HALVES = ("float16", "bfloat16")


def require_room(
    problem: Problem, settings: Settings, session: Session, source: str, certain_bytes: int = CERTAIN_BYTES
) -> None:
    """Raise `UnsupportedHere` where a reference with large inputs takes more of the host's memory than there is.

    Asked of a child that has loaded nothing yet; `source` is the path of the reference. On a device what a call takes
    is measured in one, which is quicker. `certain_bytes`: 0 to look closer whatever the inputs.
    """
    if settings.gpu or input_bytes(problem.source) < certain_bytes:
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
    """What a call takes by its shapes, computed by a child and remembered; None where that can not be told."""
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
