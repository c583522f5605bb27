"""The records of the service: what a client asks for, and a job with what came of it."""

from typing import Annotated, Any, Literal

from pydantic import Field, JsonValue, StringConstraints, model_validator

from kernelwright.problems.record.base import Record
from kernelwright.sandbox.pool.protocol import Stage
from kernelwright.sandbox.pool.remote import JobSettings
from kernelwright.sandbox.verdict.judge_version import JUDGE_VERSION
from kernelwright.sandbox.verdict.settings import JudgingEffort

LONGEST_TEXT = 2**18
"""Characters of a source or of a problem's text."""
MOST_WAIT_S = 300.0
"""How long one request waits for a job; a client that wants to wait longer asks again."""
State = Literal["queued", "judging", "done", "cancelled"]
"""`done`: there is a report, or an error that says why there is no verdict. It is reached once, as is `cancelled`."""
PlaceName = Literal["cpu", "cuda"]
Text = Annotated[str, StringConstraints(max_length=LONGEST_TEXT)]
Short = Annotated[str, StringConstraints(min_length=1, max_length=200)]


class JobRequest(Record):
    """A candidate to be judged. The problem is given in one of three ways: `problem`, `text` or `record`."""

    problem: Short | None = Field(default=None, description="Name of a problem of the catalog.")
    text: Text | None = Field(default=None, description="Text of a problem file in the KernelBench convention.")
    record: dict[str, JsonValue] | None = Field(
        default=None, description="A problem as GET /v1/problems/NAME gives it."
    )
    name: Short = Field(default="problem", description="What a problem that is given as `text` is to be called.")
    size: Short | None = Field(default=None, description="Of a catalog problem; default: what fits the candidate.")
    dtype: Short | None = Field(default=None, description="Cast weights and floating inputs; default: as they are.")
    backward: bool = Field(default=False, description="Judge and time the gradients too.")
    source: Text = Field(description="The candidate: Python that defines ModelNew.")
    device: PlaceName | None = Field(default=None, description="Default: what the source asks for.")
    effort: JudgingEffort | None = Field(default=None, description="How sure the verdict has to be; default: rank.")
    beat: float | None = Field(default=None, gt=0, description="At effort `search`: the speedup of the best so far.")
    settings: JobSettings = JobSettings()
    stage: Stage = Field(default="time", description="`check` is effort `screen`.")
    fresh: bool = Field(default=False, description="By reference processes of its own, with seeds of their own.")
    priority: int = Field(default=0, ge=-10, le=10, description="Each is worth a minute of waiting.")
    key: Short | None = Field(default=None, description="The same key again gives the same job: for trying again.")

    @model_validator(mode="after")
    def _one_problem(self) -> "JobRequest":
        if sum(one is not None for one in (self.problem, self.text, self.record)) != 1:
            raise ValueError("give the problem as one of `problem`, `text` and `record`")
        if self.stage == "build":
            raise ValueError("stage is `check` or `time`")
        return self


class JobError(Record):
    """Why there is no verdict: the problem's fault or the machine's, never the candidate's."""

    message: str
    whole_problem: bool = False
    """Whether no candidate of the problem can have one."""
    machine_lacks: bool = False
    """Whether another machine could give one."""
    unsupported: bool = False
    """Whether the problem is sound for itself."""


class NewJob(Record):
    """A request that has been read: what is kept, and judged when its turn comes."""

    work: str
    """`Work` as JSON: the process that listens does not look into it."""
    stage: Stage
    place: PlaceName
    problem: str
    priority: int
    key: str | None


class Job(Record):
    """A job as clients see it."""

    id: str
    state: State
    problem: str
    device: PlaceName
    priority: int
    created: str
    """UTC, as ISO 8601."""
    finished: str | None = None
    begun: int = 0
    """How often it was taken up: more than once where the service was killed meanwhile."""
    report: dict[str, Any] | None = None
    """The object of `kernelwright judge --json`."""
    error: JobError | None = None


class ServiceFacts(Record):
    """What the service is."""

    harness: str = f"judge version {JUDGE_VERSION}"
    """Deprecated: clients of the version before compare it."""
    judge_version: int
    """Verdicts of different judge versions are not compared."""
    wire_version: int
    """The version of the messages. Clients of another version are refused."""
    devices: dict[PlaceName, list[dict[str, Any]]]
    """What is judged on, with the conditions of each verdict that is reached there."""
    room: dict[PlaceName, int]
    """How many jobs are in hand at a time; more wait."""
    queue: int
    """How many jobs may be open."""
    draining: bool
