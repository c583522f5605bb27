"""Named selections of problems, and a run over them: search, judge, keep the best; going on with a stopped one."""

import asyncio
import secrets
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

from pydantic import Field, ValidationError

from kernelwright.agent.briefs import BriefMaker, remembered, sheet_for, versions_here
from kernelwright.agent.config import AnyProvider, ProviderOptions, RecordedOptions, SearchConfig, read_provider
from kernelwright.agent.engine import Evaluator, Parts
from kernelwright.agent.log.best import write_best
from kernelwright.agent.log.events import AtFault, Event, RunLogError
from kernelwright.agent.log.store import RunLog, Setting
from kernelwright.agent.log.view import View
from kernelwright.agent.providers import check_provider, providing
from kernelwright.agent.providers.recorded import read_session, recorded_targets, sessions_folder
from kernelwright.agent.providers.simulated import SimulatedEvaluator
from kernelwright.agent.scheduler import Scheduler, evaluating, views_of
from kernelwright.agent.strategies import load_strategy
from kernelwright.evals.verdict_store import run_summary
from kernelwright.evals.version import commit, own_version
from kernelwright.problems import Problem, ProblemError, catalog_names, formats, load_problem
from kernelwright.problems.formats import HOMES, addresses
from kernelwright.problems.languages import TARGETS
from kernelwright.problems.problem import Record, first_fault
from kernelwright.prompts import Brief, Parent, Prompt, Role, Target, TargetVersions, device_sheet, render
from kernelwright.prompts.brief import Baselines
from kernelwright.sandbox.authenticity.scan import GivenProblem, checked_problems
from kernelwright.sandbox.machine import require_tools, versions
from kernelwright.sandbox.pool.judge_pool import Where, as_far_as_there, settled
from kernelwright.sandbox.storage import Store
from kernelwright.sandbox.verdict.judge_version import JUDGE, JUDGE_VERSION
from kernelwright.sandbox.verdict.settings import JudgeSettings

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
    """Return the problems of a suite, in order; `ProblemError` for an unknown name.

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
    """The entries that `suite` leaves out since they cannot be loaded."""
    entries = formats.left_out(name) if _is_foreign(name) else {}
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
"""Search options for recorded answers: these follow the order of the idea bank and their own parents, and nobody reads
their prompts."""


class RunConfig(Record):
    """All options of a run, stored in its header, so that a resumed run does the same."""

    search: SearchConfig
    provider: AnyProvider = RecordedOptions()
    versions: TargetVersions = TargetVersions()
    device: str | None = None
    """A named device whose sheet the prompt shows; None for this machine."""
    judging: JudgeSettings = JudgeSettings()
    executor: Where = Where()
    attempts: dict[str, int] = Field(default_factory=dict)
    """The number of attempts of a problem, where it differs from that of the search."""
    left_out: tuple[LeftOut, ...] = ()
    """Entries of a suite that could not be read."""


class Running:
    def __init__(self, log: RunLog, plan: RunConfig) -> None:
        self.log = log
        self.plan = plan
        self.problems = [log.problem(name) for name in log.header.problems]

    @classmethod
    def start(cls, folder: Path, problems: Sequence[Problem], plan: RunConfig) -> Self:
        """Start a new run. Raises what the user or the machine lacks before anything is written."""
        if plan.provider.kind != "simulated" and plan.executor.server is None:
            require_tools(plan.search.target)
        if isinstance(plan.provider, RecordedOptions):
            for problem in problems:
                read_session(problem.name, plan.search.target, sessions_folder(plan.provider.folder), problem.dtype)
        check_provider(plan.provider)
        load_strategy(plan.search.strategy, plan.search)
        executor = settled(plan.executor, plan.judging)
        theirs = executor.kind if executor.server and executor.kind and device_sheet(executor.kind) else None
        plan = plan.model_copy(update={"executor": executor, "device": plan.device or theirs})
        if plan.provider.kind not in ("recorded", "simulated") and executor.server is None:
            plan = plan.model_copy(update={"versions": versions_here()})
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
        """Open the run in `folder` to continue it, exclusively. Raises `RunLogError`."""
        log = RunLog.open(folder, alone=True)
        try:
            plan = RunConfig.model_validate(log.header.config)
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
        """Search for the problems; keep the best of each on disk. Return views in the order of the problems.

        A problem that cannot be judged ends its own search: its view says why. Raises as `Scheduler.search` does.
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
            run_summary(self.log.folder)  # kept for a leaderboard
            return views_of(self.log)

    def left_out(self) -> list[View]:
        """Views of the entries that could not be read, with the reason."""
        return [View(problem=one.problem, stopped=one.why, fault=one.fault) for one in self.plan.left_out]

    def _config_for(self, problem: Problem) -> SearchConfig:
        config = self.plan.search
        if problem.name in self.plan.attempts:
            config = config.model_copy(update={"attempts": self.plan.attempts[problem.name]})
        if not isinstance(self.plan.provider, RecordedOptions):
            return config
        session = read_session(problem.name, config.target, sessions_folder(self.plan.provider.folder), problem.dtype)
        length = len(session.entries)
        limits = {"drafts": session.drafts, "patience": length, "attempts": min(config.attempts, length)}
        return config.model_copy(update=limits)

    def _judging(self) -> AbstractAsyncContextManager[Evaluator]:
        if self.plan.provider.kind == "simulated":
            return nullcontext(SimulatedEvaluator(seconds=0.0))
        cache = self.plan.provider.cache  # cached answers are found only if prompts state the same measured times
        kept = Store("measured", Path(cache)) if cache else None
        return evaluating(*as_far_as_there(self.plan.executor, self.plan.judging), kept)


def new_folder(out: Path | None) -> Path:
    return out or Path("runs") / f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"


def run(
    problems: Sequence[GivenProblem],
    model: str | None = None,
    out: Path | None = None,
    provider: ProviderOptions | None = None,
    settings: JudgeSettings | None = None,
    **search_options: object,
) -> list[View]:
    """Search for kernels from Python: a catalog name, a path or a `Problem` each. Returns a view for each problem.

    `settings` without a device judge on that of the target. Without a model the recorded answers that ship are
    replayed. Further options are fields of `SearchConfig`; unless a `provider` is given, the server and the key come
    from OPENAI_BASE_URL and OPENAI_API_KEY.
    """
    answers = read_provider(provider or ProviderOptions(kind="server" if model else "recorded"))
    recorded = answers.kind == "recorded"
    chosen = (FOR_RECORDED if recorded else {}) | {"model": model or answers.kind} | search_options
    config = SearchConfig.model_validate(chosen)
    judging = settings or JudgeSettings()
    if "effort" not in judging.model_fields_set:
        judging = judging.at("search")
    if "device" not in judging.model_fields_set:
        judging = judging.model_copy(update={"device": TARGETS[config.target].device})
    size = "gpu" if judging.gpu else None
    found = [one if isinstance(one, Problem) else load_problem(one, size) for one in checked_problems(problems)]
    plan = RunConfig(search=config, provider=answers, judging=judging)
    with Running.start(new_folder(out), found, plan) as running:
        return asyncio.run(running.search_all(lambda event: None))


DIRECTIONS = ("forward", "backward", "both")


class PromptChoice(Record):
    problem: str
    role: Role
    target: Target
    size: str | None = None
    dtype: str | None = None
    parent: str | None = None
    """Source of the candidate to start from."""
    evidence: str = ""
    device: str | None = None
    versions: dict[str, str] = Field(default={})
    direction: str | None = None


def show_prompt(choice: PromptChoice, without: frozenset[str] = frozenset()) -> Prompt:
    """Render the prompt; for a GPU target a catalog problem comes at size `gpu` unless said otherwise."""
    problem = load_problem(choice.problem, choice.size or default_size(choice.problem, choice.target), choice.dtype)
    if choice.direction is not None:
        if choice.direction not in DIRECTIONS:
            raise ProblemError(f"no direction {choice.direction!r}; there are: {', '.join(DIRECTIONS)}")
        problem = problem.model_copy(update={"direction": choice.direction})
    parent = None
    if choice.parent is not None:
        outcome = "failed at check" if choice.role == "repair" else "passed"
        parent = Parent(number=1, source=choice.parent, outcome=outcome, evidence=choice.evidence)
    sheet = sheet_for(choice.target, choice.device)
    try:
        versions = TargetVersions(**({} if choice.device else versions_here().model_dump()) | choice.versions)
    except ValidationError:
        raise ProblemError("a target's version is two or three numbers with points, such as 3.12") from None
    brief = Brief(
        problem=problem,
        target=choice.target,
        role=choice.role,
        device=sheet,
        versions=versions,
        baselines=Baselines() if choice.device else remembered(problem, sheet, JudgeSettings().threads),
        parent=parent,
    )
    return render(brief, without=without)


def first_prompt(problem: Problem, target: Target) -> Prompt:
    """Render the first prompt of a search for a problem."""
    sheet = sheet_for(target, None)
    known = remembered(problem, sheet, JudgeSettings().threads)
    here = {"device": sheet, "versions": versions_here(), "baselines": known}
    return render(Brief(problem=problem, target=target, role="propose", **here))


def default_size(problem: str, target: Target) -> str | None:
    """Return `gpu` for a catalog problem under a GPU target, else None: the problem's own default."""
    return "gpu" if problem in catalog_names() and TARGETS[target].device == "cuda" else None
