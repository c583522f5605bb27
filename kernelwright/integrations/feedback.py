"""What a verdict says to a model that is to do better, in at most so many characters. Pure."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from kernelwright.integrations.reward import Reward
from kernelwright.prompts.markdown import trimmed
from kernelwright.sandbox.verdict.findings import Look
from kernelwright.sandbox.verdict.in_words import timing_lines
from kernelwright.sandbox.verdict.recheck import measurement_of

LONGEST = 6000


def feedback(report: Mapping[str, Any], earned: Reward, longest: int = LONGEST) -> str:
    """The deciding fact first; then what surrounds it, and what the judge found odd."""
    if report["outcome"] == "failed":
        said = f"failed at {report['stage']}: {report['reason']}"
        said += f"\n{report['log']}" if report["log"] else ""
    else:
        look = Look.model_validate_json(json.dumps(report["look"])) if report["look"] else None
        said = f"passed\n{timing_lines(measurement_of(dict(report)), look)}"
    odd = "\n".join(_oddities(report, earned))
    return f"{trimmed(said, longest - len(odd[: longest // 2]))}\n{odd[: longest // 2]}".rstrip()


def _oddities(report: Mapping[str, Any], earned: Reward) -> Iterator[str]:
    authenticity = report["authenticity"]
    yield f"kernel: {authenticity['label']} ({'; '.join(authenticity['evidence'])})"
    yield from (f"a build failed and was hidden: {line}" for line in report["hidden_builds"])
    if earned.flags:
        yield f"flagged: {', '.join(earned.flags)}"
