"""`render`: from a `Brief` to a `Prompt`, by way of one template for each section."""

import re
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import Environment, FileSystemLoader, StrictUndefined, TemplateError

from kernelwright.problems import INPUT_DISTRIBUTIONS
from kernelwright.problems.languages import TARGETS
from kernelwright.prompts.brief import Brief, Prompt, PromptError, Role, Section
from kernelwright.prompts.ideas import capability_of, narrow_of, snippet_texts, snippets_for, traits_of

TEMPLATES, EXAMPLES = Path(__file__).parent / "templates", Path(__file__).parent / "examples"
CODE_ROLES: frozenset[Role] = frozenset({"propose", "repair", "improve"})
EVERY_ROLE: frozenset[Role] = frozenset({*CODE_ROLES, "plan", "critique", "reflect"})
WITH_A_PARENT: frozenset[Role] = frozenset({"repair", "improve", "plan", "critique"})
WANTED = 3  # ideas or rules that are requested at once
CONTINUATION_LINES = 40
FIRST_BYTES, LATER_BYTES = 20_000, 12_000
"""Limits of a first prompt, and of one that starts from an attempt, next to its source. Snippets fill what is left."""
STABLE_BYTES = 9_000  # of the stable sections of a prompt that starts from an attempt; a longer one has no crib
FIRST_CLUSTERS = 9.0  # the compute capability from which on blocks form clusters
MODAL = re.compile(r"(?i)(batch|instance)_?norm|dropout|rrelu|\.training\b")
"""What a source names where training mode and eval mode may differ."""
HEAD_BYTES = 180  # of the section of snippets without these


class Slot(NamedTuple):
    """A section's place in the prompt.

    Its text comes from the first of `NAME/ROLE.md.j2`, `NAME.md.j2` and `languages/LANGUAGE.md.j2` that exists, where
    `section` is its name. A section that renders to nothing is left out.
    """

    name: str
    stable: bool = False  # its template sees problem, target and versions alone, so it cannot break its promise
    roles: frozenset[Role] = EVERY_ROLE


INSTRUCTIONS = Slot(name="instructions", roles=CODE_ROLES)
SLOTS = (
    Slot(name="role", stable=True),
    Slot(name="contract", stable=True),
    Slot(name="reference", stable=True),
    Slot(name="answer_format", stable=True),
    Slot(name="crib", stable=True, roles=CODE_ROLES),
    Slot(name="example", stable=True, roles=frozenset({"propose"})),
    Slot(name="hardware"),
    # Advice on speed distracts a repair from the cause of the failure.
    Slot(name="times", roles=EVERY_ROLE - {"repair"}),
    Slot(name="floor", roles=EVERY_ROLE - {"repair"}),
    INSTRUCTIONS,
    Slot(name="tuning", roles=frozenset({"propose", "improve"})),
    Slot(name="history"),
    Slot(name="parent", roles=WITH_A_PARENT),
    Slot(name="evidence", roles=WITH_A_PARENT),
    Slot(name="directive"),
    Slot(name="reminder"),
)
SECTION_NAMES = tuple(slot.name for slot in SLOTS)


def render(brief: Brief, *, without: frozenset[str] = frozenset(), templates: Path | None = None) -> Prompt:
    """Render the prompt for `brief`.

    `without` names sections to leave out, to see what each is worth. `templates` is a folder whose files take the place
    of the shipped ones of the same name. Raises `PromptError` for a brief that contradicts itself, an unknown section
    and a template that fails.
    """
    if fault := _fault(brief, without):
        raise PromptError(fault)
    environment, language = _environment(templates), TARGETS[brief.target]
    traits = traits_of(brief.problem, brief.target)
    stable: dict[str, Any] = {
        "problem": brief.problem,
        "target": brief.target,
        "language": language,
        "versions": brief.versions,
        "example": _example(brief),
        "has": lambda *operators: not traits.operators or bool(set(operators) & set(traits.operators)),
        "input_distributions": {name: one for name, one in INPUT_DISTRIBUTIONS.items() if one.words},
        "mode": brief.baselines.mode,
        "is_modal": bool(MODAL.search(brief.problem.source)),
        "narrow": narrow_of(brief.problem),
    }
    given = ("role", "device", "baselines", "parent", "history", "left_out", "lessons", "best_ms", "room")
    step = stable | {name: getattr(brief, name) for name in given}
    step |= {"directive": brief.directive.strip(), "wanted": WANTED, "parts": (), "bound": traits.bound}
    step |= {"longest": LONGEST_EVIDENCE, "has_clusters": (capability_of(brief.device) or 0) >= FIRST_CLUSTERS}

    def text(slot: Slot) -> str:
        names = [f"{slot.name}/{brief.role}.md.j2", f"{slot.name}.md.j2", f"languages/{brief.target}.md.j2"]
        try:
            template = environment.select_template(names)
            return template.render(stable if slot.stable else step, section=slot.name).strip()
        except TemplateError as error:
            raise PromptError(f"section '{slot.name}' cannot be rendered: {error}; correct its template") from error

    hidden = without | ({"parent", "evidence"} if brief.parent is None else set())
    slots = [slot for slot in SLOTS if brief.role in slot.roles and slot.name not in hidden]
    texts = {slot: text(slot) for slot in slots}

    def size(*names: str) -> int:
        """Count the bytes of all sections, or of those that have one of these names."""
        return sum(len(text.encode()) + 2 for slot, text in texts.items() if not names or slot.name in names)

    limit = FIRST_BYTES if brief.parent is None else LATER_BYTES + len(brief.parent.source.encode())
    is_long = size("role", "contract", "reference", "answer_format", "crib") > STABLE_BYTES
    if brief.parent is not None and is_long:
        texts = {slot: text for slot, text in texts.items() if slot.name != "crib"}
    for name in ("tuning", "evidence", "times", "history"):
        over = size() - limit
        if over > 0 and name == "evidence" and brief.parent is not None:
            step["longest"] = max(LEAST_EVIDENCE, min(LONGEST_EVIDENCE, len(brief.parent.evidence)) - over)
            texts |= {slot: text(slot) for slot in texts if slot.name == name}
        elif over > 0:
            texts = {slot: text for slot, text in texts.items() if slot.name != name}
    if INSTRUCTIONS in texts:  # empty so far: the others say how much room there is
        step["parts"] = snippets_for(brief, limit - HEAD_BYTES - size())
        texts[INSTRUCTIONS] = text(INSTRUCTIONS)
    sections = (Section(name=slot.name, text=text, stable=slot.stable) for slot, text in texts.items() if text)
    return Prompt(role=brief.role, target=brief.target, sections=tuple(sections))


def _fault(brief: Brief, without: frozenset[str]) -> str:
    """Say why no prompt can be made; empty where one can. A plan may do without a parent."""
    role, parent, device = brief.role, brief.parent, TARGETS[brief.target].device
    if role == "tune":
        return "role 'tune' has no prompt, since no model is asked; use another role"
    if parent is None and role in {"repair", "improve", "critique"}:
        return f"role '{role}' needs a parent attempt and got none; name one (--parent), or use role 'propose'"
    if parent is not None and role in {"propose", "reflect"}:
        return f"role '{role}' takes no parent but got attempt {parent.number}; leave it out"
    if parent is not None and parent.passed == (role in {"repair", "critique"}):
        fits = f"use role '{'improve' if parent.passed else 'repair'}'"
        return f"role '{role}' does not fit attempt {parent.number}, whose outcome is '{parent.outcome}'; {fits}"
    if brief.device.kind != device:
        is_wrong = f"'{brief.device.name}' is of kind '{brief.device.kind}'"
        return f"target '{brief.target}' runs on a {device} device and {is_wrong}; give the sheet of a {device} device"
    if unknown := sorted(without - set(SECTION_NAMES)):
        return f"no section '{unknown[0]}' to leave out; there are: {', '.join(SECTION_NAMES)}"
    return ""


def continued(prompt: Prompt, reply_text: str) -> Prompt:
    """Render the one request to continue a reply that was cut off; a section behind all others."""
    tail = "\n".join(reply_text.splitlines()[-CONTINUATION_LINES:])
    text = _environment(None).get_template("continuation.md.j2").render(tail=tail).strip()
    section = Section(name="continuation", text=text, stable=False)
    return Prompt(role=prompt.role, target=prompt.target, sections=(*prompt.sections, section))


def _example(brief: Brief) -> dict[str, str]:
    """Read the newest example that runs under the versions; `PromptError` where PyTorch is too old for the target."""
    choices, torch = TARGETS[brief.target].examples, brief.versions.torch
    choice = next((choice for choice in choices if brief.versions.torch_at_least(choice.torch)), None)
    if choice is None:
        needs = f"target '{brief.target}' needs PyTorch {choices[-1].torch} or newer"
        raise PromptError(f"{needs} and {torch} was requested; raise the version or choose another target")
    files = {"reference": EXAMPLES / "reference.py", "answer": EXAMPLES / f"{choice.name}.py"}
    return {name: path.read_text(encoding="utf-8") for name, path in files.items()}


@cache
def _environment(templates: Path | None) -> Environment:
    environment = Environment(
        loader=FileSystemLoader([*filter(None, [templates]), TEMPLATES]),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=False,
    )
    environment.globals["snippet"] = lambda name: snippet_texts()[name]
    environment.filters.update(cell=cell, fenced=fenced, milliseconds=milliseconds, times=times, trimmed=trimmed)
    return environment


LONGEST_EVIDENCE, LEAST_EVIDENCE = (
    6000,
    1500,
)  # characters: the deciding fact is at the head, the last words of a tool at the end


def fenced(text: str, language: str = "") -> str:
    """Put a text into a code fence that is longer than any run of backticks inside it."""
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text.strip(chr(10))}\n{fence}"


def cell(text: str) -> str:
    """Write a text as the cell of a table: on one line and without bars."""
    return " ".join(text.replace("|", "/").split())


def trimmed(text: str, limit: int = LONGEST_EVIDENCE) -> str:
    """Cut a text to about `limit` characters at line ends: two thirds from its head, one third from its tail."""
    if len(text) <= limit:
        return text
    head = text[: limit * 2 // 3].rpartition("\n")[0] or text[: limit * 2 // 3]
    tail = text[-(limit // 3) :].partition("\n")[2] or text[-(limit // 3) :]
    left_out = len(text) - len(head) - len(tail)
    return f"{head}\n[... {left_out} characters left out ...]\n{tail}"


def milliseconds(value: float | None) -> str:
    """Write a time in ms to three significant digits, never in scientific notation; a dash for None."""
    if value is None:
        return "-"
    return f"{value:.0f}" if value >= 100 else f"{value:#.3g}"


def times(value: float | None) -> str:
    """Write a speedup with two decimals and an x; a dash for None."""
    return "-" if value is None else f"{value:.2f}x"
