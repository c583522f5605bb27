"""`kernelwright run`, `resume` and `replay`: search for kernels, go on with a run, do one again without network."""

import asyncio
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from kernelwright import options
from kernelwright.problems.languages import listed_targets
from kernelwright.terminal import (
    FELL_SHORT,
    INTERRUPTED,
    UserMistake,
    exit_with,
    json_option,
    note,
    own_command,
    table_console,
)

if TYPE_CHECKING:
    from kernelwright.agent.config import AnyProvider
    from kernelwright.agent.log.view import View
    from kernelwright.evals.runs import Running
    from kernelwright.problems import Problem

OWN_NAMES = {"local": "SmolLM2-135M-Instruct", "files": "files", "simulated": "simulated"}
"""The model's name where none is given; other providers need one."""
LISTS = {"models", "advisers", "without", "learn_from"}
"""Search settings that are lists."""
SummaryJson = Annotated[bool, json_option("One JSON object a problem at the end, nothing else.")]


class ProviderArguments(NamedTuple):
    """Model: its name, and the server or program that answers for it."""

    model: Annotated[
        str | None, typer.Option(help="Model to ask; without one or a --provider the recorded answers are used.")
    ] = None
    provider: Annotated[
        str | None,
        typer.Option(
            help="recorded, files, batch, local, simulated, a server of `kernelwright models list`, FILE.py:FUNCTION."
        ),
    ] = None
    base_url: Annotated[
        str | None, typer.Option(help="Address of a server; default: that of --provider, OPENAI_BASE_URL, or OpenAI's.")
    ] = None
    api_key_env: Annotated[
        str | None,
        typer.Option(help="Environment variable that holds the key; default: that of --provider, or OPENAI_API_KEY."),
    ] = None
    api: Annotated[
        str | None, typer.Option(help="Form of the requests: chat or responses; default: that of --provider, or chat.")
    ] = None
    presets: options.PresetsOption = None
    folder: Annotated[
        Path | None, typer.Option(help="Folder of the tasks of --provider files, or of recorded sessions.")
    ] = None
    cache: Annotated[
        Path | None, typer.Option(help="Folder of answers that are not asked for again; default: none.")
    ] = None


RECORDED = ProviderArguments()


def run(
    problems: Annotated[
        list[str] | None, typer.Argument(help="Catalog names, .py files, PATH::ID, or captures.")
    ] = None,
    suite: Annotated[
        str | None, typer.Option(help="demo, recorded, catalog, seeds, or a benchmark's: kernelbench:level1[1-10].")
    ] = None,
    answering: ProviderArguments = RECORDED,
    target: Annotated[str, typer.Option(help=f"Language of the candidates: {listed_targets()}.")] = "cpp",
    asked: options.JudgingOptions = options.SEARCHING,
    strategy: Annotated[
        str,
        typer.Option(
            help="How to search: refine, best_of, beam, pool, elites, islands, tree, race, or file.py:function."
        ),
    ] = "refine",
    attempts: Annotated[int, typer.Option(min=1, help="Attempts for each problem.")] = 10,
    top: Annotated[
        int | None, typer.Option(min=1, help="Of a capture: the largest number of parts; default: 5.")
    ] = None,
    slots: Annotated[
        int | None, typer.Option(min=1, help="Attempts side by side for one problem; default: 1, or all for a batch.")
    ] = None,
    at_once: Annotated[int, typer.Option(min=1, help="Problems side by side.")] = 1,
    without: options.WithoutOption = None,
    prices: Annotated[Path | None, typer.Option(help="Price table (TOML), for budgets in USD; default: none.")] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="Any other search setting, as budget.usd=2.5 or patience=20; may be repeated."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="New folder for the run; default: runs/TIME.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the search's own choices.")] = 0,
    where: options.DeviceOptions = options.HERE,
    as_json: SummaryJson = False,
) -> None:
    """Search for a faster kernel for each problem. Without a model, judge the recorded answers again.

    Exit code 1 if a problem got no correct kernel, or could not be judged.
    """
    from kernelwright.agent.steering import load_prices
    from kernelwright.evals.runs import FOR_RECORDED, RunConfig, Running, left_out, new_folder
    from kernelwright.evals.runs import suite as problems_of
    from kernelwright.problems import load_problem
    from kernelwright.prompts import SECTION_NAMES

    options.check_target(target)
    if bool(problems) == bool(suite):
        raise UserMistake("name problems or a --suite, one of the two; `kernelwright problems list` shows the problems")
    named = list(problems or problems_of(str(suite), target, asked.dtype))
    names, attempts_of = with_parts(named, top, attempts)
    if not names:
        raise UserMistake(f"suite {suite!r} has no problem for target {target!r}; try --target cpp")
    choice = where.choice()
    if asked.device not in (None, "cpu") and target == "cpp":
        raise UserMistake(
            f"--device {asked.device}: target cpp asks for kernels that run on a processor; add --target cuda"
        )
    device = options.device_for(asked.device, target, "", choice.is_here)
    where.check_with(asked.device)
    found = [load_problem(name, options.size_for(name, asked.size, device), asked.dtype) for name in names]
    unknown = sorted(set(without or ()) - set(SECTION_NAMES))
    if unknown:
        raise UserMistake(f"no section {unknown[0]!r} to leave out; there are: {', '.join(SECTION_NAMES)}")
    load_prices(None if prices is None else str(prices))
    name, answers = provider_options(answering)
    config = dict(FOR_RECORDED) if answers.kind == "recorded" else {}
    config |= {"target": target, "model": name, "strategy": strategy, "attempts": attempts, "seed": seed}
    slots = slots or (attempts if answers.kind == "batch" else 1)
    config |= {"slots": slots, "problems_at_once": at_once, "without": without or []}
    config |= {"prices": None if prices is None else str(prices.resolve())} | search_options(settings or ())
    judging = asked.settings(device)
    asked.check_tools(judging.gpu, local=choice.is_here)
    if choice.is_here:
        options.check_threads(asked.threads, None if judging.gpu else where.devices)
    _prepare_process()
    if choice.is_here and judging.gpu and asked.profile is None and answers.kind not in ("recorded", "simulated"):
        from kernelwright.sandbox.gpu_tools import profiled_where_possible

        judging = profiled_where_possible(judging)
    plan = RunConfig(
        judging=judging,
        executor=choice,
        search=checked_config(config),
        provider=answers,
        attempts=attempts_of,
        left_out=left_out(suite) if suite else (),
    )
    folder = new_folder(out)
    with Running.start(folder, found, plan) as running:
        _keep_captures(named, folder)
        _search(running, folder, as_json)


def resume(folder: options.RunArgument, as_json: SummaryJson = False) -> None:
    """Continue a stopped run. Nothing is done twice; a problem that could not be judged is tried again.

    Exit code 1 if a problem got no correct kernel.
    """
    from kernelwright.evals.runs import Running

    with Running.resume(folder) as running:
        _prepare_process()
        _search(running, folder, as_json)


def replay(
    folder: options.RunArgument,
    out: Annotated[Path | None, typer.Option(help="New folder for the replayed run; default: none is kept.")] = None,
    as_json: Annotated[bool, json_option("One JSON object with events and digest.")] = False,
) -> None:
    """Repeat a run's decisions from its record. No model is called. Exit code 1 where one differs."""
    from kernelwright.agent.log.store import RunLog
    from kernelwright.agent.replay import replay as replay_run

    with RunLog.open(folder) as log, tempfile.TemporaryDirectory() as scratch:
        found = replay_run(log, out or Path(scratch) / log.header.run_id)
    if as_json:
        print(json.dumps({"run": str(folder), "same": True, **found.model_dump()}))
        return
    print(f"{folder}: {found.events} events came out the same; digest {found.digest}")


def provider_options(typed: ProviderArguments) -> "tuple[str, AnyProvider]":
    """Return the model's name and its provider; `UserMistake` for options that contradict each other."""
    from kernelwright.agent.config import read_provider

    kind = _kind(typed)
    if kind == "recorded" and typed.model:
        raise UserMistake("recorded answers come from no model; leave out --model or --provider recorded")
    if kind != "server" and typed.base_url:
        raise UserMistake(f"--base-url names a server but {_who(kind)}; add --model or leave it out")
    server_only = {"--api": None if kind == "local" else typed.api, "--api-key-env": typed.api_key_env}
    for option, given in server_only.items():
        if kind != "server" and given:
            raise UserMistake(f"{option} {given} is for a server but {_who(kind)}; add --model or leave it out")
    if typed.presets and not typed.provider:
        raise UserMistake(f"--presets {typed.presets} holds servers by name; name one with --provider")
    if kind not in ("files", "recorded") and typed.folder:
        raise UserMistake(f"--folder is for --provider files and recorded, but {_who(kind)}; leave it out")
    model = typed.model or OWN_NAMES.get(kind)
    if model is None and kind != "recorded":
        raise UserMistake(f"--provider {typed.provider} needs the name of a model; add --model")
    is_file = kind == "local" and typed.model is not None and typed.model.endswith(".gguf")
    options = read_provider(
        {
            "kind": kind,
            "server": _server(typed),
            "folder": None if typed.folder is None else str(typed.folder.resolve()),
            "model_file": str(Path(str(typed.model)).resolve()) if is_file else None,
            "cache": None if typed.cache is None else str(typed.cache.resolve()),
        }
    )
    return model or "recorded", options


def _kind(typed: ProviderArguments) -> str:
    from kernelwright.agent.providers import load_presets, providers

    if typed.provider is None:
        return "server" if typed.model else "recorded"
    if ":" in typed.provider:
        path, _, function = typed.provider.rpartition(":")
        return f"{Path(path).resolve()}:{function}"
    kinds = [kind for kind in providers() if kind != "server"]
    if typed.provider in kinds:
        return typed.provider
    presets = load_presets(typed.presets)
    if typed.provider not in presets:
        raise UserMistake(
            f"no provider {typed.provider!r}; there are: {', '.join([*kinds, *presets])}, and any function as "
            "path/to/file.py:function"
        )
    return "server"


def _server(typed: ProviderArguments) -> "dict[str, object]":
    from kernelwright.agent.config import ServerOptions
    from kernelwright.agent.providers import load_presets

    preset = load_presets(typed.presets).get(typed.provider or "")
    found: dict[str, object] = (preset.options if preset else ServerOptions()).model_dump(exclude={"kind", "cache"})
    given = {"base_url": typed.base_url, "api_key_env": typed.api_key_env, "api": typed.api}
    if typed.base_url:
        found["needs_key"] = False
    if typed.api not in (None, "chat", "responses"):
        raise UserMistake(f"no form {typed.api!r}; there are: chat, responses")
    return found | {name: value for name, value in given.items() if value is not None}


def _who(kind: str) -> str:
    return "no model was given" if kind == "recorded" else f"{kind} answers"


def search_options(settings: Sequence[str]) -> dict[str, Any]:
    """Parse `slots=4`, `budget.usd=2.5`, `models=a,b` as fields of `SearchConfig`; `UserMistake` for an unknown one."""
    from kernelwright.agent.config import Budget, SearchConfig

    names = sorted({*SearchConfig.model_fields, *(f"budget.{limit}" for limit in Budget.model_fields)} - {"budget"})
    found: dict[str, Any] = {}
    for setting in settings:
        name, equals, value = setting.partition("=")
        outer, _, inner = name.partition(".")
        if not equals or name not in names:
            raise UserMistake(f"no search setting {setting!r}; give NAME=VALUE, where NAME is: {', '.join(names)}")
        if inner:
            found.setdefault(outer, {})[inner] = _value(value)
        else:
            found[outer] = value.split(",") if outer in LISTS else _value(value)
    return found


def checked_config(fields: dict[str, Any]) -> Any:
    """Validate a `SearchConfig`; `UserMistake` names the field at fault."""
    from pydantic import ValidationError

    from kernelwright.agent.config import SearchConfig

    try:
        return SearchConfig.model_validate(fields)
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
        key = ".".join(str(part) for part in fault["loc"])
        said = fault["msg"].partition(", ")[0].replace("Input", "it")
        raise UserMistake(f"search setting {key!r} cannot be {fault['input']!r}: {said}") from error


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def with_parts(named: Sequence[str], top: int | None, attempts: int) -> tuple[list[str], dict[str, int]]:
    """Replace each capture by its chosen parts; return the problems and the number of attempts of each part.

    The parts share the attempts of as many problems, by their possible gain.
    """
    from kernelwright.programs.record import is_capture
    from kernelwright.programs.split import attempts_for, chosen_problems

    if top is not None and not any(map(is_capture, named)):
        raise UserMistake(f"--top chooses among the parts of a capture, and {', '.join(named)} is none; name one")
    names: list[str] = []
    shares: dict[str, int] = {}
    for one in named:
        if not is_capture(one):
            names.append(one)
            continue
        weights = chosen_problems(Path(one), top)
        if not weights:
            raise UserMistake(f"no part of {one} is worth a kernel by `kernelwright split`; capture a slower program")
        names += weights
        counts = attempts_for(weights.values(), attempts)
        shares |= {Path(path).name: count for path, count in zip(weights, counts, strict=True)}
    return names, shares


def _keep_captures(named: Sequence[str], run: Path) -> None:
    """Copy the capture of a run with its choice into the run's folder, so that kernels find their places.

    With several captures none is copied: their parts could have equal names.
    """
    from kernelwright.programs.record import is_capture, read_capture, read_split, write_record

    captures = [Path(one) for one in named if is_capture(one)]
    if len(captures) == 1:
        write_record(run, read_capture(captures[0]))
        write_record(run, read_split(captures[0]))


def _prepare_process() -> None:
    """Protect this process, which holds the keys to models; workers judge in processes of their own.

    Call it before a run starts: that imports torch, for its version.
    """
    from kernelwright.sandbox.jail.zygote import protect_this_process, set_passive_waiting

    set_passive_waiting()
    protect_this_process()


def _search(running: "Running", folder: Path, as_json: bool) -> None:
    """Search all problems of the run and print the results. Exit code 1 if a problem got no correct kernel.

    That includes a problem that could not be judged, and an entry of a suite that could not be read.
    """
    from rich.console import Console
    from rich.text import Text

    from kernelwright.evals.report import Progress, ending_words

    console = Console(stderr=as_json)
    names = tuple(problem.name for problem in running.problems)
    plan = running.plan.search
    count = "1 problem" if len(names) == 1 else f"{len(names)} problems"
    dtypes = sorted({problem.dtype for problem in running.problems if problem.dtype})
    place = ", ".join([running.plan.judging.device, running.log.header.device, *dtypes])
    intro = f"run {folder}: {count}, target {plan.target}, on {place}, answers from {plan.model}"
    console.print(intro, highlight=False, soft_wrap=True)
    left_out = running.left_out()
    for view in left_out:
        console.print(Text(f"{view.problem}: {ending_words(view)}"), soft_wrap=True)
    try:
        with Progress(names, console) as progress:
            for name in names:
                progress.take_over(name, list(running.log.events(name)))
            views = asyncio.run(running.search_all(progress.event)) + left_out
    except KeyboardInterrupt:
        exit_with(INTERRUPTED, f"stopped; what is done is kept, go on with: {own_command()} resume {folder}")
    except Exception:
        note(f"what is done is kept in {folder}; go on with: {own_command()} resume {folder}")
        raise
    _print(running, views, folder, as_json)
    raise typer.Exit(0 if all(view.best for view in views) else FELL_SHORT)


def _print(running: "Running", views: "list[View]", folder: Path, as_json: bool) -> None:
    from kernelwright.agent.log.best import PROBLEM, device_option
    from kernelwright.evals.report import summary_rows, summary_table

    if as_json:
        for row in summary_rows(views, folder):
            print(json.dumps(row))
        return
    table_console().print(summary_table(views))
    kept, found = next(((view.problem, view.best) for view in views if view.best), (None, None))
    if kept and found:
        best = folder / "best" / kept
        rules, again = best / PROBLEM, device_option(found.ruling)
        named = kept if _is_as_shipped(running.log.problem(kept)) else rules
        print(f"\nEach kept kernel lies in {folder / 'best' / 'PROBLEM'} with its problem and verdict.")
        print("Next:")
        print(f"  {own_command()} export {folder} --best FOLDER   # each with a script that puts it into a model")
        print(f"  {own_command()} judge {rules} {best / 'candidate.py'}{again}   # judge one again")
        print(f"  {own_command()} prompt {named}   # what a model is asked")
        print(f"  {own_command()} run {named} --model MODEL   # ask your own model; the key in OPENAI_API_KEY")


def _is_as_shipped(problem: "Problem") -> bool:
    """Return whether the name alone loads this problem: one of the catalog, not cast to a dtype."""
    from kernelwright.problems import ProblemError, catalog_names, load_problem

    try:
        return problem.name in catalog_names() and problem == load_problem(problem.name, problem.size)
    except ProblemError:  # a file of that name, whose size is its own
        return False
