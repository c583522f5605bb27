"""Prompts: a `Brief` goes in, a `Prompt` made of named sections comes out.

The words are in `templates/`, one jinja2 file for each section, rendered with `StrictUndefined`; worked examples in
`examples/` are real files that build and run; device figures are data. This package talks to no model, reads no
machine and runs no candidate.
"""

from kernelwright.problems.languages import Target
from kernelwright.prompts.brief import (
    Brief,
    Parent,
    PastAttempt,
    Prompt,
    PromptError,
    Role,
    Section,
    TargetVersions,
    estimated_tokens,
    shortened,
)
from kernelwright.prompts.devices import DeviceSheet, cpu_sheet, device_sheet, known_devices
from kernelwright.prompts.ideas import Idea, Traits, applicable, idea_bank, traits_of
from kernelwright.prompts.rendering import SECTION_NAMES, continued, render

__all__ = [
    "SECTION_NAMES",
    "Brief",
    "DeviceSheet",
    "Idea",
    "Parent",
    "PastAttempt",
    "Prompt",
    "PromptError",
    "Role",
    "Section",
    "Target",
    "TargetVersions",
    "Traits",
    "applicable",
    "continued",
    "cpu_sheet",
    "device_sheet",
    "estimated_tokens",
    "idea_bank",
    "known_devices",
    "render",
    "shortened",
    "traits_of",
]
