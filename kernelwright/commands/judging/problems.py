"""`kernelwright problems`: list, show and check."""

import json
from typing import Annotated

import typer

from kernelwright.commands.judging.checking import check
from kernelwright.commands.options.exit_codes import UserMistake
from kernelwright.commands.options.shared_options import DtypeOption, size_option

app = typer.Typer(
    help="The catalog, and checks of problems from anywhere.", no_args_is_help=True, rich_markup_mode=None
)


@app.command("list")
def list_problems(
    family: Annotated[str | None, typer.Option(help="Only problems of this family; default: all.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a problem, nothing else.")] = False,
) -> None:
    """List the problems that ship."""
    from kernelwright.problems import catalog_names, load_problem

    found = [load_problem(name) for name in catalog_names()]
    chosen = [problem for problem in found if family in (None, problem.family)]
    if not chosen:
        families = sorted({problem.family for problem in found})
        raise UserMistake(f"no family {family!r}; there are: {', '.join(families)}")
    width = max(len(problem.name) for problem in chosen)
    for problem in chosen:
        if as_json:
            print(json.dumps({"name": problem.name, "family": problem.family, "title": problem.title}))
        else:
            print(f"{problem.name:{width}}  {problem.family:14}  {problem.title}")


@app.command("show")
def show(
    problem: Annotated[str, typer.Argument(help="Catalog name, path of a .py file, or PATH::ID.")],
    size: Annotated[str | None, size_option("cpu")] = None,
    dtype: DtypeOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="The whole record as one JSON object.")] = False,
) -> None:
    """Print a problem's reference with its sizes put in. Before it, policies and what PyTorch took for it here."""
    from kernelwright.problems import load_problem
    from kernelwright.sandbox.timing.baseline_times import BaselineTimes, in_words

    found = load_problem(problem, size, dtype)
    times = BaselineTimes(found).known()
    if as_json:
        known = [time.model_dump(mode="json") for time in times]
        print(json.dumps(found.model_dump(mode="json") | {"digest": found.digest, "baselines": known}))
        return
    print(f"# {found.name} ({found.family}, size {found.size}): {found.title}")
    print(f"# precision {found.precision}, operators {found.operators}, direction {found.direction}")
    if found.dtype is not None:
        print(f"# dtype {found.dtype}: weights and floating inputs are cast to it once they are made")
    if found.values.without:
        reason = " ".join(found.values.reason.split())
        print(f"# not judged on values {', '.join(found.values.without)}: {reason}")
    print(f"# digest {found.digest}")
    for line in in_words(times):
        print(f"# baselines on {line}")
    print(f"\n{found.source}")


app.command("check")(check)
