"""`kernelwright prompt` and `extract`: the prompt as the model will read it; the candidate out of a reply."""

import json
import sys
from typing import Annotated

import typer

from kernelwright.options import DtypeOption, WithoutOption, size_option
from kernelwright.terminal import FELL_SHORT, UserMistake, read_text

ROLES = ("propose", "repair", "improve", "plan", "critique", "reflect")


def prompt(
    problem: Annotated[str, typer.Argument(help="Catalog name, path of a .py file, or PATH::ID.")],
    role: Annotated[
        str, typer.Option(help="What is asked for: propose, repair, improve, plan, critique or reflect.")
    ] = "propose",
    target: Annotated[
        str, typer.Option(help="What the answer is written in: cpp, cuda, cutlass, triton, tilelang, helion or cute.")
    ] = "cpp",
    size: Annotated[str | None, size_option("what fits the target")] = None,
    dtype: DtypeOption = None,
    parent: Annotated[
        str | None, typer.Option(help="File of the candidate to start from; repair and improve need one.")
    ] = None,
    evidence: Annotated[
        str | None, typer.Option(help="File with what came of --parent, such as an error's text.")
    ] = None,
    device: Annotated[str | None, typer.Option(help="A known GPU such as H200; default: this machine.")] = None,
    target_python: Annotated[
        str | None, typer.Option(help="Python that the answer must run under; default: 3.11.")
    ] = None,
    target_torch: Annotated[
        str | None, typer.Option(help="PyTorch that the answer must run under; default: 2.9.")
    ] = None,
    target_cuda: Annotated[
        str | None, typer.Option(help="CUDA that the answer must compile under; default: any.")
    ] = None,
    direction: Annotated[str | None, typer.Option(help="forward, backward or both; default: the problem's.")] = None,
    without: WithoutOption = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object: sections with digests and token estimates.")
    ] = False,
) -> None:
    """Print a prompt as the model will read it. A token estimate for each section goes to standard error."""
    from kernelwright.evals.runs.prompting import PromptChoice, show_prompt
    from kernelwright.prompts.targets import TARGETS

    if role not in ROLES:
        raise UserMistake(f"no role {role!r}; there are: {', '.join(ROLES)}")
    if target not in TARGETS:
        raise UserMistake(f"no target {target!r}; there are: {', '.join(TARGETS)}")
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
