"""`kernelwright doctor`: what this machine has, what is missing, and how to get it."""

import json
import sys
from typing import Annotated

import typer

from kernelwright.terminal import DONE, MACHINE_LACKS


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="One JSON list of findings, nothing else.")] = False,
    prepare: Annotated[
        bool, typer.Option("--prepare", help="Make torch's light header now: under a minute, 4 MB.")
    ] = False,
) -> None:
    """Look at the machine. Exit code 3 if candidates can not be judged on it at all."""
    from kernelwright.sandbox.build import HeaderShelf, toolchain
    from kernelwright.sandbox.judge.doctor import examine

    if prepare:
        tools = toolchain()
        if tools is None:
            print("kernelwright: no C++ compiler is found, so there is nothing to prepare", file=sys.stderr)
            raise typer.Exit(MACHINE_LACKS)
        done = HeaderShelf(tools).prepare()
        print(f"the light torch/extension.h: {'ready' if done else 'could not be made'}", file=sys.stderr, flush=True)
    findings = examine()
    if as_json:
        print(json.dumps([finding.model_dump() for finding in findings]))
    else:
        for finding in findings:
            mark = {"ok": "ok     ", "absent": "absent ", "missing": "MISSING"}[finding.state]
            print(f"{mark} {finding.name}: {finding.found}{'; ' + finding.remedy if finding.remedy else ''}")
    raise typer.Exit(MACHINE_LACKS if any(finding.state == "missing" for finding in findings) else DONE)
