"""Every kept kernel under racecheck and synccheck of compute-sanitizer, each in a jailed process of its own.

`results/hazards.json` has the outcome by kernel and tool; what is there is not run again.
"""

import json
import time
from collections.abc import Callable
from pathlib import Path

from bench.results.again import problem_of
from bench.results.index import Kept, read_index
from kernelwright.sandbox.authenticity.scan import candidate_of
from kernelwright.sandbox.gpu_tools import SANITIZE, needed, parse_hazards, run_call, sanitizer
from kernelwright.sandbox.judge.judging import Judge
from kernelwright.sandbox.storage import write_atomically
from kernelwright.sandbox.verdict.errors import SandboxError
from kernelwright.sandbox.verdict.settings import Settings

HAZARDS, TOOLS = "hazards.json", ("racecheck", "synccheck")


def read_hazards(folder: Path) -> dict[str, dict[str, str]]:
    """By kernel's digest and tool, what it found; empty where nothing was run."""
    path = folder / HAZARDS
    found: dict[str, dict[str, str]] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return found


def check_hazards(folder: Path, tree: Path, tell: Callable[[str], None], minutes: float = float("inf")) -> int:
    """Run the tools over what has no outcome yet; how many kernels are left. Raises `MachineError` without a tool."""
    end = time.monotonic() + 60 * minutes
    index = read_index(folder)
    known = read_hazards(folder)
    waiting = [row for row in index.rows if _digest(row) not in ("", *known)]
    if waiting:
        needed(SANITIZE)
    for at, row in enumerate(waiting):
        if time.monotonic() > end:
            return len(waiting) - at
        settings = Settings.model_validate(index.runs[row.run]["config"]["judging"]).at("screen")
        try:
            found = _checked(row, tree, (folder / str(row.kernel)).read_text(encoding="utf-8"), settings)
        except SandboxError as error:
            found = {tool: f"silent: {error}" for tool in TOOLS}
        known[_digest(row)] = found
        write_atomically(folder / HAZARDS, json.dumps(known, indent=1, sort_keys=True) + "\n")
        tell(f"{row.address} in {row.dtype}: {', '.join(f'{tool} {said}' for tool, said in found.items())}")
    return 0


def _digest(row: Kept) -> str:
    return row.facts.best.candidate_digest if row.facts.best else ""


def _checked(row: Kept, tree: Path, source: str, settings: Settings) -> dict[str, str]:
    with Judge(problem_of(row, tree), settings) as judge:
        built = judge.build(candidate_of(source))
        try:
            if built.failure:
                return {tool: f"silent: it fails at {built.failure.stage}" for tool in TOOLS}
            runs = {tool: run_call(judge.subject(built), sanitizer(tool)) for tool in TOOLS}
            return {tool: parse_hazards(ran.report, ran.ended_well, ran.printed) for tool, ran in runs.items()}
        finally:
            built.close()
