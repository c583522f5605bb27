"""`kernelwright extract`: the candidate source out of a messy reply."""

import sys
from typing import Annotated

import typer

from kernelwright.commands.options.exit_codes import FELL_SHORT
from kernelwright.commands.options.files import read_text


def extract(
    reply: Annotated[str, typer.Argument(help="File with a model's reply; - for standard input.")],
    truncated: Annotated[bool, typer.Option("--truncated", help="The reply was cut off by its length limit.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object with source, how and warnings, or the failure.")
    ] = False,
) -> None:
    """Print the source that defines ModelNew, alone. Exit code 1, and why on standard error, if there is none."""
    from kernelwright.agent.replies import Extraction
    from kernelwright.agent.replies import extract as extract_candidate

    found = extract_candidate(read_text(reply, "reply file"), truncated=truncated)
    if as_json:
        print(found.model_dump_json())
    elif isinstance(found, Extraction):
        print(found.source, end="" if found.source.endswith("\n") else "\n")
        print(f"from the reply: {found.how}", *found.warnings, sep="\n", file=sys.stderr)
    else:
        print(f"kernelwright: {found.kind}: {found.detail}", file=sys.stderr)
    if not isinstance(found, Extraction):
        raise typer.Exit(FELL_SHORT)
