"""`render`: from a `Brief` to a `Prompt`, by way of one template for each section."""

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import Environment, FileSystemLoader, StrictUndefined, TemplateError

from kernelwright.problems import INPUT_DISTRIBUTIONS
from kernelwright.problems.languages import TARGETS, Target
from kernelwright.prompts.brief import (
    Brief,
    Prompt,
    PromptError,
    Role,
    Section,
    TargetVersions,
    check_parent,
    estimated_tokens,
)
from kernelwright.prompts.ideas import narrow_of, snippet_texts, snippets_for, traits_of
from kernelwright.prompts.modes import mode_of

TEMPLATES, EXAMPLES = Path(__file__).parent / "templates", Path(__file__).parent / "examples"
CODE_ROLES: frozenset[Role] = frozenset({"propose", "repair", "improve"})
EVERY_ROLE: frozenset[Role] = frozenset({*CODE_ROLES, "plan", "critique", "reflect"})
WANTED = 3
"""Ideas or rules that are asked for at once."""
CONTINUATION_LINES = 40
MOST_TOKENS = 8_900
"""Limit of a complete prompt; the other sections leave the rest for snippets."""
HEAD_TOKENS = 80
"""Of the section of snippets without these."""


class Slot(NamedTuple):
    """A section's place in the prompt.

    Its text comes from the first of `NAME/ROLE.md.j2`, `NAME.md.j2` and `languages/LANGUAGE.md.j2` that exists, where
    `section` is its name. A section that renders to nothing is left out.
    """

    name: str
    stable: bool = False
    """A stable section's template sees problem, target and versions alone, so it cannot break its promise."""
    roles: frozenset[Role] = EVERY_ROLE


INSTRUCTIONS = Slot(name="instructions", roles=CODE_ROLES)
SLOTS = (
    Slot(name="role", stable=True),
    Slot(name="contract", stable=True),
    Slot(name="crib", stable=True),
    Slot(name="example", stable=True),
    Slot(name="reference", stable=True),
    Slot(name="answer_format", stable=True),
    Slot(name="hardware"),
    Slot(name="times"),
    Slot(name="floor"),
    INSTRUCTIONS,
    # Advice on speed distracts a repair from the cause of the failure.
    Slot(name="tuning", roles=frozenset({"propose", "improve"})),
    Slot(name="history"),
    Slot(name="parent", roles=frozenset({"repair", "improve", "plan", "critique"})),
    Slot(name="evidence", roles=frozenset({"repair", "improve", "plan", "critique"})),
    Slot(name="directive"),
    Slot(name="reminder"),
)
SECTION_NAMES = tuple(slot.name for slot in SLOTS)
NEED_A_PARENT = frozenset({"parent", "evidence"})


def render(brief: Brief, *, without: frozenset[str] = frozenset(), templates: Path | None = None) -> Prompt:
    """The prompt for `brief`.

    `without` names sections to leave out, to see what each is worth. `templates` is a folder whose files take the place
    of the shipped ones of the same name. Raises `PromptError` for a brief that contradicts itself, an unknown section
    and a template that fails.
    """
    _check(brief, without)
    environment = _environment(templates)
    hidden = without | (NEED_A_PARENT if brief.parent is None else frozenset())
    slots = [slot for slot in SLOTS if brief.role in slot.roles and slot.name not in hidden]
    stable = _stable_context(brief)
    step = stable | _step_context(brief)
    texts = {slot: _section_text(environment, slot, brief, stable if slot.stable else step) for slot in slots}
    if INSTRUCTIONS in texts:  # empty so far: the others say how much room there is
        room = MOST_TOKENS - HEAD_TOKENS - sum(estimated_tokens(text) for text in texts.values())
        step |= {"parts": snippets_for(brief, room)}
        texts[INSTRUCTIONS] = _section_text(environment, INSTRUCTIONS, brief, step)
    sections = (Section(name=slot.name, text=text, stable=slot.stable) for slot, text in texts.items() if text)
    return Prompt(role=brief.role, target=brief.target, sections=tuple(sections))


def continued(prompt: Prompt, reply_text: str) -> Prompt:
    """The prompt that asks, once, to go on with a reply that was cut off; a section behind all others."""
    tail = "\n".join(reply_text.splitlines()[-CONTINUATION_LINES:])
    text = _environment(None).get_template("continuation.md.j2").render(tail=tail).strip()
    section = Section(name="continuation", text=text, stable=False)
    return Prompt(role=prompt.role, target=prompt.target, sections=(*prompt.sections, section))


def _check(brief: Brief, without: frozenset[str]) -> None:
    check_parent(brief)
    wanted = TARGETS[brief.target].device
    if brief.device.kind != wanted:
        raise PromptError(
            f"target '{brief.target}' runs on a {wanted} device and '{brief.device.name}' is of kind "
            f"'{brief.device.kind}'; give the sheet of a {wanted} device"
        )
    unknown = sorted(without - set(SECTION_NAMES))
    if unknown:
        raise PromptError(f"no section '{unknown[0]}' to leave out; there are: {', '.join(SECTION_NAMES)}")


def _section_text(environment: Environment, slot: Slot, brief: Brief, context: Mapping[str, Any]) -> str:
    names = [f"{slot.name}/{brief.role}.md.j2", f"{slot.name}.md.j2", f"languages/{brief.target}.md.j2"]
    try:
        return environment.select_template(names).render(context, section=slot.name).strip()
    except TemplateError as error:
        raise PromptError(f"section '{slot.name}' cannot be rendered: {error}; correct its template") from error


def _stable_context(brief: Brief) -> dict[str, Any]:
    return {
        "problem": brief.problem,
        "target": brief.target,
        "language": TARGETS[brief.target],
        "versions": brief.versions,
        "example": _example(brief.target, brief.versions),
        "input_distributions": {name: one for name, one in INPUT_DISTRIBUTIONS.items() if one.words},
        "mode": mode_of(brief.problem.source),
        "narrow": narrow_of(brief.problem),
    }


def _example(target: Target, versions: TargetVersions) -> dict[str, str]:
    """The newest example that runs under `versions`; `PromptError` where PyTorch is too old for the target."""
    choices = TARGETS[target].examples
    for choice in choices:
        if versions.torch_at_least(choice.torch):
            files = {"reference": EXAMPLES / "reference.py", "answer": EXAMPLES / f"{choice.name}.py"}
            return {name: path.read_text(encoding="utf-8") for name, path in files.items()}
    raise PromptError(
        f"target '{target}' needs PyTorch {choices[-1].torch} or newer and {versions.torch} was asked for; "
        "raise the version or choose another target"
    )


def _step_context(brief: Brief) -> dict[str, Any]:
    return {
        "role": brief.role,
        "device": brief.device,
        "baselines": brief.baselines,
        "directive": brief.directive.strip(),
        "parent": brief.parent,
        "history": brief.history,
        "left_out": brief.left_out,
        "lessons": brief.lessons,
        "wanted": WANTED,
        "best_ms": brief.best_ms,
        "bound": traits_of(brief.problem, brief.target).bound,
        "parts": (),
    }


@cache
def _environment(templates: Path | None) -> Environment:
    folders = [TEMPLATES] if templates is None else [templates, TEMPLATES]
    environment = Environment(
        loader=FileSystemLoader(folders),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=False,
    )
    environment.globals["snippet"] = lambda name: snippet_texts()[name]
    environment.filters.update(cell=cell, fenced=fenced, milliseconds=milliseconds, times=times, trimmed=trimmed)
    return environment


LONGEST_EVIDENCE = 6000
"""Characters. Beyond it the middle goes: the deciding fact stands at the head, the last words of a tool at the end."""


def fenced(text: str, language: str = "") -> str:
    """`text` in a code fence that is longer than any run of backticks inside it."""
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text.strip(chr(10))}\n{fence}"


def cell(text: str) -> str:
    """`text` as the cell of a table: on one line and without bars."""
    return " ".join(text.replace("|", "/").split())


def trimmed(text: str, limit: int = LONGEST_EVIDENCE) -> str:
    """`text` cut to about `limit` characters at line ends: two thirds from its head, one third from its tail."""
    if len(text) <= limit:
        return text
    head = text[: limit * 2 // 3].rpartition("\n")[0] or text[: limit * 2 // 3]
    tail = text[-(limit // 3) :].partition("\n")[2] or text[-(limit // 3) :]
    left_out = len(text) - len(head) - len(tail)
    return f"{head}\n[... {left_out} characters left out ...]\n{tail}"


def milliseconds(value: float | None) -> str:
    """A time in ms to three significant digits, never in scientific notation; a dash for None."""
    if value is None:
        return "-"
    return f"{value:.0f}" if value >= 100 else f"{value:#.3g}"


def times(value: float | None) -> str:
    """A speedup with two decimals and an x; a dash for None."""
    return "-" if value is None else f"{value:.2f}x"
