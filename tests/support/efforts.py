"""The effort at which the hostile and the honest corpora are judged: `rank`, or what KERNELWRIGHT_EFFORT says."""

import os

from kernelwright.sandbox.verdict.settings import JudgeSettings

VARIABLE = "KERNELWRIGHT_EFFORT"


def at_asked_effort(settings: JudgeSettings) -> JudgeSettings:
    """The same settings at that effort. Raises `KeyError` for a word that names none."""
    return settings.at(os.environ.get(VARIABLE, settings.effort))
