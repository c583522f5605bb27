"""Which settings a client of the service may choose: how sure a verdict is, and what else is measured."""

from pydantic import Field, JsonValue

from kernelwright.problems.record.base import Record
from kernelwright.sandbox.pool.protocol import ExecutorError
from kernelwright.sandbox.verdict.settings import BaselineGroup, CompileMode, JudgingEffort, Settings

SERVICE_S_OWN = frozenset({"device", "cores"})
"""What is said in another way, or follows from the device."""


class JobSettings(Record):
    """How much a verdict may cost, and what is measured beside it. All else is the service's own."""

    min_pairs: int | None = Field(default=None, ge=4, le=600)
    max_pairs: int | None = Field(default=None, ge=4, le=600)
    worker_pairs: int | None = Field(default=None, ge=1, le=10)
    warm_up: int | None = Field(default=None, ge=1, le=10)
    time_budget_s: float | None = Field(default=None, ge=0.05, le=60)
    interval_target: float | None = Field(default=None, ge=0.001, le=1)
    compiled: tuple[CompileMode, ...] | None = Field(default=None, max_length=4)
    baselines: tuple[BaselineGroup, ...] | None = Field(default=None, max_length=5)
    sanitize: bool | None = None
    profile: bool | None = None
    effort: JudgingEffort | None = None


def chosen_for_jobs(settings: Settings) -> dict[str, JsonValue]:
    """What was chosen of the settings, to be sent. Raises `ExecutorError` for what is the service's to choose."""
    usual = Settings().model_dump(mode="json")
    chosen = settings.model_dump(mode="json", exclude_unset=True)
    wanted = {name: value for name, value in chosen.items() if name not in SERVICE_S_OWN and value != usual[name]}
    if own := sorted(set(wanted) - set(JobSettings.model_fields)):
        raise ExecutorError(f"{own[0]} is the service's own to choose; leave it out, or judge without --server")
    return wanted
