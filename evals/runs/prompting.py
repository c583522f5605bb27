"""One prompt, rendered for a person to read."""

from pydantic import BaseModel, ConfigDict

from kernelwright.agent.briefs import remembered, sheet_for
from kernelwright.problems import Problem, ProblemError, load_problem
from kernelwright.problems.languages import TARGETS
from kernelwright.prompts import Brief, Parent, Prompt, Role, Target, TargetVersions, render
from kernelwright.prompts.brief import Baselines
from kernelwright.sandbox.verdict.settings import Settings

DIRECTIONS = ("forward", "backward", "both")


class PromptChoice(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    problem: str
    role: Role
    target: Target
    size: str | None = None
    dtype: str | None = None
    parent: str | None = None
    """Source of the candidate to start from."""
    evidence: str = ""
    device: str | None = None
    versions: dict[str, str] = {}
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
    brief = Brief(
        problem=problem,
        target=choice.target,
        role=choice.role,
        device=sheet,
        versions=TargetVersions(**choice.versions),
        baselines=Baselines() if choice.device else remembered(problem, sheet, Settings().threads),
        parent=parent,
    )
    return render(brief, without=without)


def first_prompt(problem: Problem, target: Target) -> Prompt:
    sheet = sheet_for(target, None)
    known = remembered(problem, sheet, Settings().threads)
    return render(Brief(problem=problem, target=target, role="propose", device=sheet, baselines=known))


def default_size(problem: str, target: Target) -> str | None:
    """`gpu` for a catalog problem under a GPU target; None, that is the problem's own default, otherwise."""
    from kernelwright.problems import catalog_names

    return "gpu" if problem in catalog_names() and TARGETS[target].device == "cuda" else None
