"""Prompts: a `Brief` goes in, a `Prompt` made of named sections comes out.

The words are in `templates/`, one jinja2 file for each section, rendered with `StrictUndefined`; worked examples in
`examples/` are real files that build and run; device figures are data. This package talks to no model, reads no
machine and runs no candidate.
"""

from kernelwright.problems.languages import Target as Target
from kernelwright.prompts.brief import Brief as Brief
from kernelwright.prompts.brief import Parent as Parent
from kernelwright.prompts.brief import PastAttempt as PastAttempt
from kernelwright.prompts.brief import Prompt as Prompt
from kernelwright.prompts.brief import PromptError as PromptError
from kernelwright.prompts.brief import Role as Role
from kernelwright.prompts.brief import Section as Section
from kernelwright.prompts.brief import TargetVersions as TargetVersions
from kernelwright.prompts.brief import estimated_tokens as estimated_tokens
from kernelwright.prompts.brief import shortened as shortened
from kernelwright.prompts.devices import DeviceSheet as DeviceSheet
from kernelwright.prompts.devices import cpu_sheet as cpu_sheet
from kernelwright.prompts.devices import device_sheet as device_sheet
from kernelwright.prompts.devices import known_devices as known_devices
from kernelwright.prompts.ideas import Idea as Idea
from kernelwright.prompts.ideas import Traits as Traits
from kernelwright.prompts.ideas import applicable as applicable
from kernelwright.prompts.ideas import idea_bank as idea_bank
from kernelwright.prompts.ideas import traits_of as traits_of
from kernelwright.prompts.rendering import SECTION_NAMES as SECTION_NAMES
from kernelwright.prompts.rendering import continued as continued
from kernelwright.prompts.rendering import render as render
