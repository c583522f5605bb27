"""The record of one thing that `kernelwright doctor` looked at."""

from typing import Literal

from kernelwright.problems.record.base import Record


class HealthCheck(Record):
    """One thing looked at. `missing`: nothing can be judged without it. `absent`: some target or layer is not there."""

    name: str
    state: Literal["ok", "absent", "missing"]
    found: str
    remedy: str = ""
