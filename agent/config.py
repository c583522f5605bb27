"""`SearchConfig`: everything that steers a search and is not the problem."""

from pydantic import Field

from prompts import Target
from sandbox.verdict import Record


class SearchConfig(Record):
    """Written whole into the header of a run, so that a resumed search does what the first one would have done."""

    target: Target = "cpp"
    model: str
    strategy: str = "refine"
    attempts: int = Field(default=10, ge=1)
    """The budget, for each problem."""
    drafts: int = Field(default=2, ge=1)
    """First versions from the reference, each with an idea of its own."""
    repairs: int = Field(default=2, ge=0)
    """How often in a row a failure is repaired before it is given up."""
    patience: int = Field(default=6, ge=1)
    """Improvements without a gain before the search ends."""
    gain: float = Field(default=0.02, ge=0)
    """The least share by which an improvement must beat the best so far to count as one."""
    slots: int = Field(default=1, ge=1)
    """Attempts in flight at once. Only with 1 does a fresh run repeat another exactly."""
    seed: int = 0
    temperature: float | None = None
    """None leaves it to the provider."""
    max_tokens: int | None = Field(default=None, ge=1)
    provider_retries: int = Field(default=2, ge=0)
    """How often a passing failure of the provider is tried again, beyond the retries of its own client."""
    retry_delay_s: float = Field(default=10.0, ge=0)
    """Wait before the first of these; doubled for each further one."""
