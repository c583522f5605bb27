"""The base of every record."""

from pydantic import BaseModel, ConfigDict


class Record(BaseModel):
    """A frozen, closed record: unknown fields are errors, and nothing changes after construction."""

    model_config = ConfigDict(frozen=True, extra="forbid")
