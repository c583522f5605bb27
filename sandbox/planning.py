"""What a problem takes of memory before anything of it runs for real, and the refusal where there is not enough."""

from pydantic import ValidationError

from problems import Problem
from sandbox.errors import UnsupportedHere
from sandbox.floor.store import Store, plan_key
from sandbox.memory import free_bytes
from sandbox.record import Record
from sandbox.room import ON_DEVICE, ON_HOST, Needs, child_bytes, child_refusal, references_kept, refusal
from sandbox.sessions import Refused, Session
from sandbox.settings import Settings

CATALOG_SIZES = ("cpu", "gpu")
"""Sizes that were chosen to fit; those of other people's files were not."""


class _Kept(Record):
    """A plan as it is remembered."""

    inputs: int
    weights: int
    result: int
    exact: int
    peak: int


def require_room(problem: Problem, settings: Settings, session: Session, source: str) -> Needs | None:
    """What a call takes by its shapes; None where that can not be told, or need not be.

    Asked of a child that has loaded nothing yet; `source` is the path of the reference. Raises `UnsupportedHere` where
    it is more than there is.
    """
    if problem.size in CATALOG_SIZES:
        return None
    needs = _plan(problem, settings, session, source)
    if needs is None:
        return None
    if settings.gpu:
        from sandbox.gpu.device import device_of

        there = device_of(settings).total_bytes()
        if references_kept(needs, 1, there, ON_DEVICE) == 0:
            raise UnsupportedHere(refusal(problem.name, needs, there, ON_DEVICE))
    elif child_bytes(needs) > settings.memory_bytes:
        raise UnsupportedHere(child_refusal(problem.name, needs, settings.memory_bytes))
    elif references_kept(needs, 1, there := free_bytes(), ON_HOST) == 0:
        raise UnsupportedHere(refusal(problem.name, needs, there, ON_HOST))
    return needs


def _plan(problem: Problem, settings: Settings, session: Session, source: str) -> Needs | None:
    store, key = Store("plans"), plan_key(problem.digest)
    kept = store.get(key)
    if kept is None:
        question = {
            "op": "plan",
            "source": source,
            "dtype": problem.dtype,
            "backward": problem.direction != "forward",
        }
        try:
            kept = session.ask(question, settings.start_timeout_s).get("plan")
        except Refused:
            kept = {}
        store.put(key, kept if isinstance(kept, dict) else {})
    try:
        return Needs(**_Kept.model_validate(kept).model_dump())
    except ValidationError:
        return None
