"""`kernelwright batch`: the open asks of a run as an OpenAI batch file, and its answers back."""

from pathlib import Path
from typing import Annotated

import typer

from kernelwright.commands.files import read_text
from kernelwright.endings import FELL_SHORT, UserMistake, own_command, reported

app = typer.Typer(help="Send the asks of a run as a batch file, and take its answers back.", no_args_is_help=True)
Folder = Annotated[Path, typer.Argument(help="Folder of the run.")]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object, nothing else.")]


@app.command("export")
@reported
def export(
    folder: Folder,
    file: Annotated[Path, typer.Argument(help="Batch file to write, one request a line.")],
    as_json: AsJson = False,
) -> None:
    """Write the asks that wait for an answer as an OpenAI batch file, in the chat completions form."""
    import json

    from agent.atomic import write_atomically
    from agent.log import RunLog
    from agent.providers.batchfile import batch_line, open_requests

    with RunLog.open(folder) as log:
        lines = {one.request.digest: batch_line(one.request) for one in open_requests(log)}
    if not lines:
        raise UserMistake(f"no ask of {folder} waits for an answer; go on with `{own_command()} resume {folder}`")
    try:
        write_atomically(file, "".join(f"{line}\n" for line in lines.values()))
    except OSError as error:
        raise UserMistake(f"cannot write {file} ({error.strerror}); choose another place") from error
    print(json.dumps({"file": str(file), "requests": len(lines)}) if as_json else f"{file}: {len(lines)} requests")


@app.command("import")
@reported
def import_(
    folder: Folder,
    file: Annotated[str, typer.Argument(help="Answers, or errors, as the batch gave them; - for standard input.")],
    as_json: AsJson = False,
) -> None:
    """Take the answers of a batch into the run. Exit code 1 while some are missing or failed."""
    from agent.log import RunLog
    from agent.providers.batchfile import import_answers

    text = read_text(file, "batch file")
    with RunLog.open(folder) as log:
        found = import_answers(log, text.split("\n"))
    if as_json:
        print(found.model_dump_json())
    else:
        print(f"{found.answered} answered, {len(found.missing)} still missing, {len(found.unknown)} not waited for")
        for name, why in found.failed.items():
            print(f"  {name[:12]} {why}")
        print(f"Next: {own_command()} resume {folder}")
    if found.missing or found.failed:
        raise typer.Exit(FELL_SHORT)
