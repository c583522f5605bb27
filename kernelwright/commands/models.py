"""`kernelwright models`, `prompt` and `extract`: who can be asked, what is asked, and the candidate in a reply."""

import json
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from kernelwright.options import (
    DtypeOption,
    PresetsOption,
    ProblemArgument,
    SizeOption,
    WithoutOption,
    check_target,
    check_threads,
)
from kernelwright.problems.languages import listed_targets
from kernelwright.terminal import FELL_SHORT, UserMistake, json_option, note, read_text

ROLES = ("propose", "repair", "improve", "plan", "critique", "reflect")

app = typer.Typer(help="Servers that can be asked by name, and a small model to try.", no_args_is_help=True)


@app.command("list")
def list_(
    presets: PresetsOption = None,
    as_json: Annotated[bool, json_option("One JSON object a server, nothing else.")] = False,
) -> None:
    """List the servers that `run --provider` knows by name. Beside each, whether the variable of its key is set."""
    from kernelwright.agent.providers import load_presets

    for name, preset in load_presets(presets).items():
        is_set = bool(os.environ.get(preset.key)) if preset.key else None
        if as_json:
            print(json.dumps({"name": name, **preset.model_dump(), "key_is_set": is_set}))
        else:
            key = f"{preset.key} ({'set' if is_set else 'not set'})" if preset.key else "no key"
            print(f"{name:<12} {preset.base_url:<58} {preset.api:<10} {key}")


@app.command("fetch")
def fetch(as_json: Annotated[bool, json_option("One JSON object, nothing else.")] = False) -> None:
    """Get the small model of `run --provider local`. 98 MB, by its checksum, into the cache."""
    from kernelwright.agent.providers.local import NAME, SHA256
    from kernelwright.agent.providers.local import fetch as fetch_weights

    path = fetch_weights()
    print(json.dumps({"model": NAME, "path": str(path), "sha256": SHA256}) if as_json else f"{NAME}: {path}")


@app.command("serve")
def serve(
    model: Annotated[Path | None, typer.Argument(help="A GGUF file; default: what `fetch` got.")] = None,
    threads: Annotated[int, typer.Option(min=1, help="Threads; with more than there are idle cores it is slower.")] = 1,
) -> None:
    """Serve a model on this machine, in OpenAI's format. Prints its address, and goes on until it is stopped."""
    from kernelwright.agent.providers.local import LocalServer, weights

    check_threads(threads)
    if model is not None and not model.is_file():
        raise UserMistake(f"there is no model file {model}; check the path")
    with LocalServer(model or weights(), threads) as server:
        print(server.base_url, flush=True)
        server.wait()


def prompt(
    problem: ProblemArgument,
    role: Annotated[
        str, typer.Option(help="What is asked for: propose, repair, improve, plan, critique or reflect.")
    ] = "propose",
    target: Annotated[str, typer.Option(help=f"What the answer is written in: {listed_targets()}.")] = "cpp",
    size: SizeOption = None,
    dtype: DtypeOption = None,
    parent: Annotated[
        str | None, typer.Option(help="File of the candidate to start from; repair and improve need one.")
    ] = None,
    evidence: Annotated[
        str | None, typer.Option(help="File with what came of --parent, such as an error's text.")
    ] = None,
    device: Annotated[str | None, typer.Option(help="A known GPU such as H200; default: this machine.")] = None,
    target_python: Annotated[
        str | None, typer.Option(help="Python that the answer must run under; default: this one, 3.11 with --device.")
    ] = None,
    target_torch: Annotated[
        str | None, typer.Option(help="PyTorch that the answer must run under; default: this one, 2.9 with --device.")
    ] = None,
    target_cuda: Annotated[
        str | None, typer.Option(help="CUDA that the answer must compile under; default: any.")
    ] = None,
    direction: Annotated[str | None, typer.Option(help="forward, backward or both; default: the problem's.")] = None,
    without: WithoutOption = None,
    as_json: Annotated[bool, json_option("One JSON object: sections with digests and token estimates.")] = False,
) -> None:
    """Print a prompt as the model will read it. A token estimate for each section goes to standard error."""
    from kernelwright.evals.runs import PromptChoice, show_prompt

    if role not in ROLES:
        raise UserMistake(f"no role {role!r}; there are: {', '.join(ROLES)}")
    check_target(target)
    if evidence is not None and parent is None:
        raise UserMistake(f"--evidence {evidence} tells what came of a candidate; name that with --parent")
    versions = {"python": target_python, "torch": target_torch, "cuda": target_cuda}
    choice = PromptChoice(
        problem=problem,
        role=role,
        target=target,
        size=size,
        dtype=dtype,
        parent=None if parent is None else read_text(parent, "candidate file"),
        evidence="" if evidence is None else read_text(evidence, "evidence file"),
        device=device,
        versions={key: value for key, value in versions.items() if value is not None},
        direction=direction,
    )
    rendered = show_prompt(choice, frozenset(without or ()))
    if as_json:
        sections = [
            section.model_dump() | {"digest": section.digest, "tokens": section.tokens} for section in rendered.sections
        ]
        print(json.dumps({"digest": rendered.digest, "tokens": rendered.tokens, "sections": sections}))
        return
    print(rendered.text)
    for section in rendered.sections:
        print(f"{section.name:14} about {section.tokens:6} tokens", file=sys.stderr)
    print(f"{'in all':14} about {rendered.tokens:6} tokens (estimated), digest {rendered.digest}", file=sys.stderr)


def extract(
    reply: Annotated[str, typer.Argument(help="File with a model's reply; - for standard input.")],
    truncated: Annotated[bool, typer.Option("--truncated", help="The reply was cut off by its length limit.")] = False,
    as_json: Annotated[bool, json_option("One JSON object with source, how and warnings, or the failure.")] = False,
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
        note(f"{found.kind}: {found.detail}")
    if not isinstance(found, Extraction):
        raise typer.Exit(FELL_SHORT)
