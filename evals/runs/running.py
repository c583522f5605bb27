"""Named selections of problems, and a run over them: search, judge, keep the best; going on with a stopped one."""

import asyncio
import secrets
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

from pydantic import Field, ValidationError

from kernelwright.agent.briefs import BriefMaker, sheet_for
from kernelwright.agent.engine.scheduling import Scheduler, evaluating, views_of
from kernelwright.agent.engine.search import Parts
from kernelwright.agent.engine.steps import Evaluator
from kernelwright.agent.log.best import write_best
from kernelwright.agent.log.config import SearchConfig
from kernelwright.agent.log.events import AtFault, Event, RunLogError
from kernelwright.agent.log.run_log import RunLog, Setting
from kernelwright.agent.log.view import View
from kernelwright.agent.providers.kinds.recorded import read_story, recorded_targets, stories
from kernelwright.agent.providers.kinds.simulated import SimulatedEvaluator
from kernelwright.agent.providers.provider import ProviderOptions, check_provider, providing
from kernelwright.agent.strategies import load_strategy
from kernelwright.evals.runs.facts import run_facts
from kernelwright.evals.runs.version import commit, own_version
from kernelwright.problems import Problem, ProblemError, catalog_names, load_problem
from kernelwright.problems.formats import collections
from kernelwright.problems.formats.collections import HOMES, addresses
from kernelwright.problems.record.base import Record, first_fault
from kernelwright.prompts import TargetVersions, device_sheet
from kernelwright.prompts.targets import TARGETS
from kernelwright.sandbox.judge.given import GivenProblem, checked_problems
from kernelwright.sandbox.machine.fact_store import Store
from kernelwright.sandbox.machine.identity import require_tools, versions
from kernelwright.sandbox.pool.judge_pool import Where, as_far_as_there, settled
from kernelwright.sandbox.verdict.judge_version import JUDGE, JUDGE_VERSION
from kernelwright.sandbox.verdict.settings import Settings

SUITES = ("demo", "recorded", "catalog", "seeds")
"""`recorded`: the problems that ship with recorded answers; `demo`: as many of them as two cores judge in some minutes;
`catalog`: all that ship; `seeds`: the transposed convolutions that the project grew out of."""

DEMO = {
    "cpp": (
        "activation_chain",
        "argmax_rows",
        "conv_transpose2d_depthwise",
        "conv_transpose2d_strided_dilated",
        "cross_entropy",
        "max_pool2d",
        "min_max",
        "rms_norm",
    )
}
"""By target; a target that is left out shows all that it has."""

SEEDS = (
    "conv_transpose2d_strided_dilated",
    "conv_transpose2d_kernel3x5",
    "conv_transpose2d_kernel3x7",
    "conv_transpose2d_grouped_asymmetric",
)


class LeftOut(Record):
    problem: str
    why: str
    fault: AtFault


def suite(name: str, target: str, dtype: str | None = None) -> tuple[str, ...]:
    """The problems of a suite, in order; `ProblemError` for an unknown name.

    `dtype`: what they are to be cast to; where no answer is recorded for that, they are the same as without.
    """
    if name == "demo":
        return DEMO.get(target) or _answered(target)
    if name == "recorded":
        return _answered(target, dtype) or _answered(target)
    if name == "catalog":
        return catalog_names()
    if name == "seeds":
        return SEEDS
    if _is_foreign(name):
        return addresses(name)
    raise ProblemError(f"no suite {name!r}; there are: {', '.join(SUITES)}")


def _answered(target: str, dtype: str | None = None) -> tuple[str, ...]:
    return tuple(problem for problem in catalog_names() if target in recorded_targets(problem, dtype=dtype))


def left_out(name: str) -> tuple[LeftOut, ...]:
    """The entries of a suite that can not be loaded; `suite` does without them."""
    entries = collections.left_out(name) if _is_foreign(name) else {}
    return tuple(
        LeftOut(problem=address, why=entry.why, fault="broken" if entry.status == "broken" else "unsupported")
        for address, entry in entries.items()
    )


def _is_foreign(name: str) -> bool:
    return ":" in name or name in HOMES


FOR_RECORDED: dict[str, object] = {
    "learn": False,
    "runner_up": 0,
    "tune": 0,
    "share": False,
    "confirm": 1,
    "measure": False,
}
"""For recorded answers: they were written to ideas in the order of the bank, each follows its own parent, and nobody
reads their prompts.
"""


class Plan(Record):
    """All that was chosen for a run; written whole into its header, so that a resumed run does the same."""

    search: SearchConfig
    provider: ProviderOptions = ProviderOptions()
    versions: TargetVersions = TargetVersions()
    device: str | None = None
    """A named device whose sheet the prompt shows; None for this machine."""
    judging: Settings = Settings()
    executor: Where = Where()
    attempts: dict[str, int] = Field(default_factory=dict)
    """By problem, how many it has where that is not what the search says: more where more is to be had."""
    left_out: tuple[LeftOut, ...] = ()
    """What a suite names and nothing could be read of."""


class Running:
    def __init__(self, log: RunLog, plan: Plan) -> None:
        self.log = log
        self.plan = plan
        self.problems = [log.problem(name) for name in log.header.problems]

    @classmethod
    def start(cls, folder: Path, problems: Sequence[Problem], plan: Plan) -> Self:
        """A new run. What the user or the machine lacks is told here, before anything is written."""
        if plan.provider.kind != "simulated" and plan.executor.server is None:
            require_tools(plan.search.target)
        if plan.provider.kind == "recorded":
            for problem in problems:
                read_story(problem.name, plan.search.target, stories(plan.provider.folder), problem.dtype)
        check_provider(plan.provider)
        load_strategy(plan.search.strategy, plan.search)
        executor = settled(plan.executor, plan.judging)
        theirs = executor.kind if executor.server and executor.kind and device_sheet(executor.kind) else None
        plan = plan.model_copy(update={"executor": executor, "device": plan.device or theirs})
        sheet = sheet_for(plan.search.target, plan.device, plan.judging.ordinal)
        setting = Setting(
            config=plan.model_dump(mode="json"),
            device="simulated" if plan.provider.kind == "simulated" else plan.executor.kind or sheet.name,
            versions=versions() | {"kernelwright": own_version(), JUDGE: str(JUDGE_VERSION)},
            commit=commit(),
        )
        return cls(RunLog.create(folder, problems, setting), plan)

    @classmethod
    def resume(cls, folder: Path) -> Self:
        """The run in `folder`, to go on with, while nobody else does. Raises `RunLogError`."""
        log = RunLog.open(folder, alone=True)
        try:
            plan = Plan.model_validate(log.header.config)
        except ValidationError as error:
            log.close()
            key = first_fault(error).key
            raise RunLogError(f"{folder} was made by another version of kernelwright ({key}); use that one") from None
        return cls(log, plan)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.log.close()

    async def search_all(self, on_event: Callable[[Event], None]) -> list[View]:
        """Search for the problems; keep the best of each on disk. Views in the order of the problems.

        A problem that can not be judged ends its own search: its view says why. What is raised, see `Scheduler.search`.
        """
        async with self._judging() as evaluator, providing(self.plan.provider, self.log) as provider:

            def parts_for(problem: Problem) -> Parts:
                config = self._config_for(problem)
                sheet = sheet_for(config.target, self.plan.device, self.plan.judging.ordinal)
                return Parts(
                    strategy=load_strategy(config.strategy, config),
                    provider=provider,
                    evaluator=evaluator,
                    log=self.log,
                    config=config,
                    brief_for=BriefMaker(sheet, self.plan.versions, self.log, config.history_tokens),
                    on_event=on_event,
                )

            def ended(problem: Problem) -> None:
                evaluator.release(problem)
                write_best(self.log, problem.name)

            await Scheduler(self.log, self.plan.search, parts_for, ended).search(self.problems)
            run_facts(self.log.folder)  # keeps what a leaderboard will ask, so that it need not be derived then
            return views_of(self.log)

    def left_out(self) -> list[View]:
        """What was to be searched and could not be read, as views that say why, to stand beside the others."""
        return [View(problem=one.problem, stopped=one.why, fault=one.fault) for one in self.plan.left_out]

    def _config_for(self, problem: Problem) -> SearchConfig:
        config = self.plan.search
        if problem.name in self.plan.attempts:
            config = config.model_copy(update={"attempts": self.plan.attempts[problem.name]})
        if self.plan.provider.kind != "recorded":
            return config
        story = read_story(problem.name, config.target, stories(self.plan.provider.folder), problem.dtype)
        length = len(story.entries)
        limits = {"drafts": story.drafts, "patience": length, "attempts": min(config.attempts, length)}
        return config.model_copy(update=limits)

    def _judging(self) -> AbstractAsyncContextManager[Evaluator]:
        if self.plan.provider.kind == "simulated":
            return nullcontext(SimulatedEvaluator(seconds=0.0))
        cache = self.plan.provider.cache  # whose answers are to prompts, which tell what was measured
        kept = Store("measured", Path(cache)) if cache else None
        return evaluating(*as_far_as_there(self.plan.executor, self.plan.judging), kept)


def new_folder(out: Path | None) -> Path:
    if out is not None:
        return out
    return Path("runs") / f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"


def run(
    problems: Sequence[GivenProblem],
    model: str | None = None,
    out: Path | None = None,
    provider: ProviderOptions | None = None,
    settings: Settings | None = None,
    **search_options: object,
) -> list[View]:
    """Search for kernels from Python: a catalog name, a path or a `Problem` each. Returns a view for each problem.

    `settings`: how it is judged; where they name no device, on the one that the target is for.
    Without a model the recorded answers that ship are played back. Further options are fields of `SearchConfig`;
    unless a `provider` says otherwise, the server and the key come from OPENAI_BASE_URL and OPENAI_API_KEY.
    """
    answers = provider or ProviderOptions(kind="server" if model else "recorded")
    recorded = answers.kind == "recorded"
    chosen = (FOR_RECORDED if recorded else {}) | {"model": model or answers.kind} | search_options
    config = SearchConfig.model_validate(chosen)
    judging = settings or Settings()
    if "effort" not in judging.model_fields_set:
        judging = judging.at("search")
    if "device" not in judging.model_fields_set:
        judging = judging.model_copy(update={"device": TARGETS[config.target].device})
    size = "gpu" if judging.gpu else None
    found = [one if isinstance(one, Problem) else load_problem(one, size) for one in checked_problems(problems)]
    plan = Plan(search=config, provider=answers, judging=judging)
    with Running.start(new_folder(out), found, plan) as running:
        return asyncio.run(running.search_all(lambda event: None))
