"""Tuning without the model: a candidate names constants that are worth other values, and the engine tries them.

A candidate declares a constant in a comment, anywhere in the file, in Python or in C++ inside a string:

    # tune: BLOCK in (64, 128, 256)
    // tune: TILE in (4, 8, 16)

and defines it once, as `BLOCK = 128`, `BLOCK: tl.constexpr = 128`, `constexpr int TILE = 8;` or `#define TILE 8`.
A declaration whose constant is not found exactly once, or whose values do not hold the present one, counts for nothing.
"""

import re
from collections.abc import Iterable, Mapping

from kernelwright.agent.log.config import SearchConfig
from kernelwright.agent.log.records import Attempt, Knob, Screening
from kernelwright.agent.log.view import View

MOST_KNOBS, MOST_VALUES = 6, 8
AS_IT_IS = "as it is"
"""The setting under which the candidate itself is screened, so that variants are compared like with like."""
WORTH_JUDGING = 0.98
"""A variant is judged if its quick time is below this share of the candidate's own quick time."""
SCREENED_FOR_EACH = 2
"""Variants that are screened for each one that may be judged."""
_DECLARED = re.compile(r"(?:#|//)[ \t]*tune:[ \t]*(\w+)[ \t]+in[ \t]*\(([^()\n]*)\)")
_VALUE = r"[-+]?[\w.]+"


def knobs_of(source: str) -> tuple[Knob, ...]:
    knobs = []
    for name, listed in _DECLARED.findall(source)[:MOST_KNOBS]:
        values = tuple(value.strip() for value in listed.split(",") if value.strip())[:MOST_VALUES]
        found = _definition(name).findall(source)
        if len(found) == 1 and found[0][1] in values and all(re.fullmatch(_VALUE, value) for value in values):
            knobs.append(Knob(name=name, value=found[0][1], values=values))
    return tuple(knobs)


def with_setting(source: str, setting: str) -> str:
    """The source with the constants of a setting (`TILE = 16, BLOCK = 64`) put in place."""
    for name, value in parse_setting(setting).items():
        found = _definition(name).search(source)
        if found is not None:
            source = source[: found.start(2)] + value + source[found.end(2) :]
    return source


def parse_setting(setting: str) -> dict[str, str]:
    """Value by name; empty for the candidate as it is."""
    pairs = (part.split(" = ") for part in setting.split(", ") if " = " in part)
    return {name: value for name, value in pairs}


def to_screen(view: View, config: SearchConfig) -> tuple[Attempt, tuple[str, ...]] | None:
    """The attempt whose variants should be looked at now, and the settings; None where there is nothing to tune."""
    best = view.best
    if best is None or best.candidate is None or not best.candidate.knobs or best.screenings:
        return None
    if best.ask.role == "tune" or _left(view, config) < 1:
        return None
    singles = [{knob.name: value} for knob in best.candidate.knobs for value in knob.values if value != knob.value]
    return best, (AS_IT_IS, *(_setting(one) for one in singles[: SCREENED_FOR_EACH * _left(view, config)]))


def to_judge(view: View, config: SearchConfig) -> list[tuple[Attempt, str]]:
    """Settings of screened attempts that deserve a verdict, most promising first, as far as the budget goes."""
    wanted = []
    for attempt in view.attempts:
        tried = {child.ask.directive for child in view.children(attempt.number) if child.ask.role == "tune"}
        wanted += [(attempt, setting) for setting in _survivors(attempt.screenings) if setting not in tried]
    return wanted[: max(0, _left(view, config))]


def _survivors(screenings: Iterable[Screening]) -> list[str]:
    """The best value of each constant that helps, all of them together, and then each alone, fastest first."""
    times = {one.setting: one.candidate_ms for one in screenings if one.candidate_ms is not None}
    base = times.pop(AS_IT_IS, None)
    if base is None:
        return []
    good = sorted((ms, setting) for setting, ms in times.items() if ms < WORTH_JUDGING * base)
    together: dict[str, str] = {}
    for _, setting in good:
        for name, value in parse_setting(setting).items():
            together.setdefault(name, value)
    return ([_setting(together)] if len(together) > 1 else []) + [setting for _, setting in good[:2]]


def _left(view: View, config: SearchConfig) -> int:
    return config.tune - sum(1 for attempt in view.attempts if attempt.ask.role == "tune")


def _setting(values: Mapping[str, str]) -> str:
    return ", ".join(f"{name} = {value}" for name, value in values.items())


def _definition(name: str) -> re.Pattern[str]:
    """Group 1: all up to the value; group 2: the value."""
    typed = r"(?:(?:static|inline|constexpr|const)[ \t]+)+[\w:]+[ \t]+"
    head = rf"(?:{typed}{name}[ \t]*=|#[ \t]*define[ \t]+{name}\b|{name}[ \t]*(?::[ \t]*[\w.]+[ \t]*)?=(?!=))"
    return re.compile(rf"(^[ \t]*{head}[ \t]*)({_VALUE})(?=[ \t]*(?:;|$|#|//))", re.MULTILINE)
