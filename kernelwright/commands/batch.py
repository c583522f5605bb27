"""`kernelwright batch`: open requests of a run as an OpenAI batch, sent as a file or to a service; and its answers."""

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kernelwright.options import RunArgument
from kernelwright.terminal import FELL_SHORT, UserMistake, json_option, opened, own_command, writing

if TYPE_CHECKING:
    from kernelwright.agent.log.store import RunLog
    from kernelwright.agent.providers.batch import BatchService, BatchStatus, Imported

app = typer.Typer(help="Send the open requests of a run as a batch, and read its answers.", no_args_is_help=True)
AsJson = Annotated[bool, json_option("One JSON object, nothing else.")]
BaseUrl = Annotated[
    str | None,
    typer.Option(help="Address of a server with /files and /batches; default: OPENAI_BASE_URL, or OpenAI's."),
]
KeyEnv = Annotated[str, typer.Option(help="Environment variable that holds the key.")]


@app.command("export")
def export(
    folder: RunArgument,
    file: Annotated[Path, typer.Argument(help="File to write, one request a line.")],
    as_json: AsJson = False,
) -> None:
    """Write the requests that wait for an answer as a batch file in OpenAI's chat completions form."""
    from kernelwright.agent.log.store import RunLog
    from kernelwright.agent.providers.batch import batch_line, open_requests
    from kernelwright.sandbox.storage import write_atomically

    with RunLog.open(folder) as log:
        lines = {one.request.digest: batch_line(one.request) for one in open_requests(log)}
    if not lines:
        raise UserMistake(f"no request of {folder} waits for an answer; go on with `{own_command()} resume {folder}`")
    with writing(file):
        write_atomically(file, "".join(f"{line}\n" for line in lines.values()))
    print(json.dumps({"file": str(file), "requests": len(lines)}) if as_json else f"{file}: {len(lines)} requests")


@app.command("import")
def import_(
    folder: RunArgument,
    file: Annotated[str, typer.Argument(help="Answers, or errors, as the batch gave them; - for standard input.")],
    as_json: AsJson = False,
) -> None:
    """Take the answers of a batch into the run. Exit code 1 while some are missing or failed."""
    from kernelwright.agent.log.store import RunLog
    from kernelwright.agent.providers.batch import import_answers

    with RunLog.open(folder, alone=True) as log, opened(file, "batch file") as lines:
        found = import_answers(log, lines)
    _report(found, folder, as_json)


@app.command("send")
def send(
    folder: RunArgument, base_url: BaseUrl = None, api_key_env: KeyEnv = "OPENAI_API_KEY", as_json: AsJson = False
) -> None:
    """Send the requests that wait for an answer to a batch service, and note them in the run's folder."""
    from kernelwright.agent.log.store import RunLog

    with RunLog.open(folder, alone=True) as log:
        sent = _service(log, base_url, api_key_env).send()
    if as_json:
        print(json.dumps({"batches": [one.model_dump() for one in sent]}))
        return
    for one in sent:
        print(f"sent {one.requests} requests as {one.id}")
    print(f"Next: {own_command()} batch fetch {folder} --wait")


@app.command("fetch")
def fetch(
    folder: RunArgument,
    wait: Annotated[bool, typer.Option("--wait", help="Ask again and again until the batches have ended.")] = False,
    every_s: Annotated[float, typer.Option(min=0.01, help="Seconds between two looks.")] = 30.0,
    base_url: BaseUrl = None,
    api_key_env: KeyEnv = "OPENAI_API_KEY",
    as_json: AsJson = False,
) -> None:
    """Take the answers of the batches that were sent into the run. Exit code 1 while some are missing or failed."""
    from kernelwright.agent.log.store import RunLog

    with RunLog.open(folder) as log:
        service = _service(log, base_url, api_key_env)
        if not service.note.sent:
            raise UserMistake(f"no batch of {folder} is under way; send one with `{own_command()} batch send {folder}`")
        if wait:
            service.wait(every_s, _show_status)
        else:
            _show_status(service.progress())
        log.run_lock.take()  # not while it waits: others may go on with the run meanwhile
        found = service.fetch()
    _report(found, folder, as_json)


def _service(log: "RunLog", base_url: str | None, api_key_env: str) -> "BatchService":
    from kernelwright.agent.config import ServerOptions
    from kernelwright.agent.providers.batch import BatchService

    return BatchService(log, ServerOptions(base_url=base_url, api_key_env=api_key_env))


def _show_status(found: "Iterable[BatchStatus]") -> None:
    for one in found:
        why = f": {one.why}" if one.why else ""
        print(f"{one.id} {one.status}: {one.done} of {one.requests} done, {one.failed} failed{why}", file=sys.stderr)


def _report(found: "Imported", folder: Path, as_json: bool) -> None:
    if as_json:
        print(found.model_dump_json())
    else:
        print(f"{found.answered} answered, {len(found.missing)} still missing, {len(found.unknown)} not waited for")
        for name, why in found.failed.items():
            print(f"  {name[:12]} {why}")
        print(f"Next: {own_command()} resume {folder}")
    if found.missing or found.failed:
        raise typer.Exit(FELL_SHORT)
