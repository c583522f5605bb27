"""250 simulated problems of 20 attempts through the real engine and a real log, on a clock that jumps."""

import tempfile
from pathlib import Path
from typing import NamedTuple

from bench.simulated.many import Load, run_many
from kernelwright.agent.config import SearchConfig

LEAST_BUSY, MOST_GROWTH = 0.9, 1.1


class Loaded(NamedTuple):
    """Many problems through the engine at once."""

    load: Load

    @property
    def holds(self) -> bool:
        """Whether the judge is kept busy and memory does not grow."""
        first, last = self.load.memory_mb[0], self.load.memory_mb[-1]
        return self.load.busy > LEAST_BUSY and last < MOST_GROWTH * first

    def __str__(self) -> str:
        load = self.load
        return (
            f"  250 problems of 20 attempts, answers in 5 to 60 s: {load.attempts} attempts, {load.events} events on "
            f"disk, judge busy {load.busy:.1%} (promised: over 90 %), memory {load.memory_mb[0]:.0f} MB after a tenth, "
            f"{load.memory_mb[-1]:.0f} MB at the end"
        )


def run(problems: int = 250) -> Loaded:
    """Answers take 5 to 60 s and a verdict 10 s, on four slots, in simulated time; 20 attempts a problem."""
    config = SearchConfig(model="simulated", attempts=20, slots=2, problems_at_once=16, patience=20)
    with tempfile.TemporaryDirectory() as folder:
        return Loaded(run_many(Path(folder) / "run", problems, config))
