"""`kernelwright doctor`: what this machine has, what is missing, and how to get it."""

import json
from typing import Annotated

import typer

from kernelwright.endings import DONE, MACHINE_LACKS


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """Look at the machine. Exit code 3 if candidates can not be judged on it at all."""
    from sandbox.doctor import examine

    findings = examine()
    if as_json:
        print(json.dumps([finding.model_dump() for finding in findings]))
    else:
        for finding in findings:
            mark = {"ok": "ok     ", "absent": "absent ", "missing": "MISSING"}[finding.state]
            print(f"{mark} {finding.name}: {finding.found}{'; ' + finding.remedy if finding.remedy else ''}")
    raise typer.Exit(MACHINE_LACKS if any(finding.state == "missing" for finding in findings) else DONE)
