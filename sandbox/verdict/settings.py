"""Settings of the judge: its budgets, and the certainty that it must reach."""

import os
from typing import Any, Literal, Self

from pydantic import Field

from kernelwright.problems.problem import Record
from kernelwright.sandbox.machine import child_limit_bytes

CompileMode = Literal["default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"]
BaselineGroup = Literal["shipped", "tf32", "channels_last", "compiled-tf32", "compiled-shipped"]
JudgingEffort = Literal["screen", "search", "rank"]
"""`screen`: right or wrong, and roughly how fast, by one worker. `search`: enough to choose, by as many worker pairs as
that takes. `rank`: what is kept, confirmed and published."""
SCREEN: dict[str, Any] = {
    **{"worker_pairs": 1, "min_pairs": 4, "max_pairs": 4, "compiled": (), "baselines": ("shipped",)},
    **{"sanitize": False, "profile": False},  # they cost some ten seconds
}
WeightsPolicy = Literal["copy", "seed", "auto"]
AT_EFFORT: dict[JudgingEffort, dict[str, Any]] = {"screen": SCREEN, "search": {}, "rank": {}}
"""Settings of each effort, from the least to the most."""
Accuracy = Literal["ieee", "default", "tf32", "kernelbench"]
"""The errors that are right, the least first. `ieee`: those that rounding in the problem's dtype explains. `default`:
those of the reference under torch's own precision switches too; `tf32`: with TF32. `kernelbench`: what KernelBench's
`torch.allclose` accepts, on inputs as drawn alone."""
Defence = Literal[
    "fresh_values",
    "families",
    "input_check",
    "overwriting",
    "standing_still",
    "idle_witness",
    "offspring",
    "threads",
    "weights",
    "timed_check",
    "placebo",
]
"""`fresh_values`: new values for every call. `families`: values of several kinds. `input_check`: inputs are compared
after the call. `overwriting`: they are gone before its result is read. `standing_still`: every thread stops outside
calls. `idle_witness`: processor time used outside calls. `offspring`: processes left running. `threads`: processor time
in a call, where there are more cores than threads. `weights`: parameters are changed after construction. `timed_check`:
timed outputs are compared. `placebo`: the baseline is timed against itself."""


class JudgeSettings(Record):
    """Limits and effort of one judging."""

    effort: JudgingEffort = "rank"
    """The effort of a verdict; see `at`."""
    accuracy: Accuracy = "ieee"
    """The errors that a candidate may have."""
    jail: Literal["auto", "strict", "off"] = "auto"
    """`auto`: the best layers that the machine has; `strict`: refuse to run without a named set; `off`: none."""
    jail_without: tuple[Literal["namespaces"], ...] = ()
    """Layers to leave out although they are available: to test what the others stop."""
    device: str = Field(default="cpu", pattern=r"^(cpu|cuda(:\d+)?)$")
    """Device of candidate and baselines: `cpu`, `cuda` (the first CUDA device), or `cuda:N`."""
    threads: int = Field(default_factory=lambda: len(os.sched_getaffinity(0)))
    """Threads for torch and OpenMP, the same for candidate and baseline; on a processor all that each may keep busy."""
    cores: tuple[int, ...] = Field(default_factory=lambda: tuple(sorted(os.sched_getaffinity(0))))
    """The processor cores that both sides may use."""
    shortcuts: bool = True
    """Whether builds may use the light header, and finished builds of the same source."""
    build_timeout_s: float = Field(default_factory=lambda given: {"cpu": 90}.get(given.get("device"), 300))
    """All compilation of the candidate, with the imports and the constructor around it, while it has a core; by default
    90 for processors and 300 for devices."""
    import_timeout_s: float = Field(default=30, gt=0)
    """The candidate's imports and its constructor, in one process, without the time that compilers are at work."""
    start_timeout_s: float = 120
    """From the start of a child until it can be asked, and each step of making a model ready once it is made."""
    call_timeout_s: float = 30
    """One call of the model. Also bounded by `call_factor`."""
    call_factor: float = 100
    """A call may take this many times the baseline's, and at least 5 s."""
    memory_bytes: int = Field(default_factory=child_limit_bytes, ge=2**20)
    """Memory of the host that each child may take; by default three quarters of what this machine has."""
    device_memory_bytes: int | None = Field(default=None, ge=2**20)
    """Memory of the device that judge and children may take together; None for all that is free."""
    processes: int = 512
    """Processes and threads of each child tree."""
    folder_bytes: int = 4 * 2**30
    """All that a child may leave in its work folder."""
    file_bytes: int = 2 * 2**30
    """Largest file that a child may write."""
    open_files: int = 1024
    warm_up: int = 2
    """Calls of each worker before its timing starts. They are checked too."""
    worker_pairs: int = Field(default=5, ge=1)
    """Independent processes for each side: every pair of them is a candidate's fresh worker and another baseline's."""
    min_pairs: int = Field(default=20, ge=4)
    max_pairs: int = Field(default=60, ge=4)
    time_budget_s: float = 2
    """Timing stops here even where the interval is still wide, but never before `min_pairs` and `worker_pairs`. The
    calls of later workers before their timing count too; those of the first are a check."""
    interval_target: float = 0.03
    """Timing stops when the half width of the speedup's interval is below this."""
    compiled: tuple[CompileMode, ...] = ()
    """Modes of torch.compile to measure against, beside eager. Each costs a compilation, once a problem."""
    baselines: tuple[BaselineGroup, ...] = ("shipped", "tf32", "channels_last")
    """On a GPU, further baselines beside strict eager and `compiled`, where they apply to the problem.

    `shipped`: eager under torch's own precision switches. `tf32`: eager with TF32. `channels_last`: eager in that
    memory format, a process of its own. `compiled-tf32`, `compiled-shipped`: each mode of `compiled` under such
    switches, which costs one more compilation a mode.
    """
    weights: WeightsPolicy = "auto"
    """The way in which the candidate gets the reference's weights. `copy`: by name, or by order and shape.

    `seed`: both models are constructed under one seed, KernelBench's convention, so that a candidate may rename, fuse
    or precompute them. `auto`: `copy`, and `seed` where they do not fit or the result is wrong.
    """
    wait_quiet: bool = False
    """Whether a judging waits, before it times, until no other program loads its cores."""
    sanitize: bool = False
    """Whether what runs on a device is looked at by compute-sanitizer's memcheck too; a faulty access fails it."""
    profile: bool = False
    """Whether what is right on a device is looked at by ncu too: the hardware's counters, as evidence."""
    without: tuple[Defence | str, ...] = ()
    """Defences and checks of the judge to do without, for trying what each of them stops; named in the evidence."""

    def at(self, effort: JudgingEffort) -> Self:
        return self.model_copy(update={"effort": effort} | AT_EFFORT[effort])

    def on(self, device: str) -> Self:
        """The settings for another device, with that one's defaults."""
        return type(self).model_validate(self.model_dump(exclude_unset=True) | {"device": device})

    @property
    def varies_inputs(self) -> bool:
        """Return whether candidates are judged on other input distributions than the problem's own."""
        return "families" not in self.without and self.accuracy != "kernelbench"

    @property
    def gpu(self) -> bool:
        """Return whether candidate and baselines run on a CUDA device."""
        return self.device != "cpu"

    @property
    def ordinal(self) -> int:
        """The number of the CUDA device among those that this process sees; 0 where none is named."""
        return int(self.device.partition(":")[2] or 0)

    @property
    def side_by_side(self) -> bool:
        """Return whether children may work next to each other; a device has one user at a time."""
        return not self.gpu
