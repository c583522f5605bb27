"""`kernelwright run`, `resume` and `replay`: search for kernels, go on with a run, do one again without network."""

import json
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from kernelwright import options
from kernelwright.commands.search_options import (
    ProviderArguments,
    checked_config,
    keep_captures,
    prepare_process,
    provider_options,
    search_and_report,
    search_options,
    with_parts,
)
from kernelwright.terminal import UserMistake


def run(
    problems: Annotated[
        list[str] | None, typer.Argument(help="Catalog names, .py files, PATH::ID, or captures.")
    ] = None,
    suite: Annotated[
        str | None, typer.Option(help="demo, recorded, catalog, seeds, or a benchmark's: kernelbench:level1[1-10].")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Model to ask; without one or a --provider the recorded answers are used.")
    ] = None,
    provider: Annotated[
        str | None,
        typer.Option(
            help="recorded, files, batch, local, simulated, a server of `kernelwright models list`, FILE.py:FUNCTION."
        ),
    ] = None,
    base_url: Annotated[
        str | None, typer.Option(help="Address of a server; default: that of --provider, OPENAI_BASE_URL, or OpenAI's.")
    ] = None,
    api_key_env: Annotated[
        str | None,
        typer.Option(help="Environment variable that holds the key; default: that of --provider, or OPENAI_API_KEY."),
    ] = None,
    api: Annotated[
        str | None, typer.Option(help="Form of the requests: chat or responses; default: that of --provider, or chat.")
    ] = None,
    presets: options.PresetsOption = None,
    folder: Annotated[
        Path | None,
        typer.Option(help="Where tasks lie for --provider files, or stories for recorded."),
    ] = None,
    cache: Annotated[
        Path | None, typer.Option(help="Folder of answers that are not asked for again; default: none.")
    ] = None,
    target: Annotated[
        str, typer.Option(help="What candidates are written in: cpp, cuda, cutlass, triton, tilelang, helion or cute.")
    ] = "cpp",
    size: Annotated[str | None, options.size_option("what fits the target", "catalog problems")] = None,
    device: options.DeviceOption = None,
    dtype: options.DtypeOption = None,
    memory: options.MemoryOption = None,
    threads: options.ThreadsOption = None,
    compiled: options.CompileOption = None,
    baselines: options.BaselinesOption = None,
    weights: options.WeightsOption = "auto",
    effort: options.EffortOption = "search",
    accuracy: options.AccuracyOption = "ieee",
    strategy: Annotated[
        str,
        typer.Option(
            help="How to search: refine, best_of, beam, pool, elites, islands, tree, race, or file.py:function."
        ),
    ] = "refine",
    attempts: Annotated[int, typer.Option(min=1, help="Attempts for each problem.")] = 10,
    top: Annotated[int | None, typer.Option(min=1, help="Of a capture: how many parts at most; default: 5.")] = None,
    slots: Annotated[
        int | None,
        typer.Option(min=1, help="Attempts in flight at once for a problem; default: 1, or all for a batch."),
    ] = None,
    at_once: Annotated[int, typer.Option(min=1, help="Problems in work at once.")] = 1,
    without: options.WithoutOption = None,
    prices: Annotated[
        Path | None, typer.Option(help="Price table (TOML), for budgets in USD; default: the one that ships.")
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="Any other search setting, as budget.usd=2.5 or patience=20; may be repeated."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="New folder for the run; default: runs/TIME.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the search's own choices.")] = 0,
    executor: options.ExecutorOption = "local",
    address: options.AddressOption = None,
    devices: Annotated[int | None, options.devices_option("1, or all with --kind")] = None,
    kind: options.KindOption = None,
    server: options.ServerOption = None,
    sanitize: options.SanitizeOption = False,
    profile: options.ProfileOption = False,
    wait_quiet: options.QuietOption = False,
    jail: options.JailOption = "auto",
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object a problem at the end, nothing else.")
    ] = False,
) -> None:
    """Search for a faster kernel for each problem. With no model, play back the recorded answers, judged afresh.

    Exit code 1 if a problem got no right kernel, be it that it could not be judged.
    """
    from kernelwright.agent.steering.budget import load_prices
    from kernelwright.evals.runs.running import FOR_RECORDED, Plan, Running, left_out, new_folder
    from kernelwright.evals.runs.running import suite as problems_of
    from kernelwright.problems import load_problem
    from kernelwright.prompts import SECTION_NAMES
    from kernelwright.prompts.targets import TARGETS

    if target not in TARGETS:
        raise UserMistake(f"no target {target!r}; there are: {', '.join(TARGETS)}")
    if bool(problems) == bool(suite):
        raise UserMistake("name problems or a --suite, one of the two; `kernelwright problems list` shows the problems")
    named = list(problems or problems_of(str(suite), target, dtype))
    names, attempts_of = with_parts(named, top, attempts)
    if not names:
        raise UserMistake(f"suite {suite!r} has no problem for target {target!r}; try --target cpp")
    choice = options.executor_choice(executor, address, devices, kind, server=server)
    if device not in (None, "cpu") and target == "cpp":
        raise UserMistake(f"--device {device}: target cpp asks for kernels that run on a processor; add --target cuda")
    where = options.device_for(device, target, "", choice.is_here)
    options.check_together(device, devices, executor)
    found = [load_problem(name, options.size_for(name, size, where), dtype) for name in names]
    unknown = sorted(set(without or ()) - set(SECTION_NAMES))
    if unknown:
        raise UserMistake(f"no section {unknown[0]!r} to leave out; there are: {', '.join(SECTION_NAMES)}")
    load_prices(None if prices is None else str(prices))
    name, answers = provider_options(
        ProviderArguments(provider, model, base_url, api_key_env, api, presets, folder, cache)
    )
    config = dict(FOR_RECORDED) if answers.kind == "recorded" else {}
    config |= {"target": target, "model": name, "strategy": strategy, "attempts": attempts, "seed": seed}
    slots = slots or (attempts if answers.kind == "batch" else 1)
    config |= {"slots": slots, "problems_at_once": at_once, "without": without or []}
    config |= {"prices": None if prices is None else str(prices.resolve())} | search_options(settings or ())
    asked = options.JudgingOptions(
        where, memory, threads, compiled, jail, sanitize, profile, effort, baselines, weights, wait_quiet, accuracy
    )
    judging = asked.settings()
    options.check_tools(sanitize, profile, judging.gpu, local=choice.is_here)
    if choice.is_here:
        options.check_threads(threads, None if judging.gpu else devices)
    plan = Plan(
        judging=judging,
        executor=choice,
        search=checked_config(config),
        provider=answers,
        attempts=attempts_of,
        left_out=left_out(suite) if suite else (),
    )
    place = new_folder(out)
    prepare_process()
    with Running.start(place, found, plan) as running:
        keep_captures(named, place)
        search_and_report(running, place, as_json)


def resume(
    folder: options.RunArgument,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object a problem at the end, nothing else.")
    ] = False,
) -> None:
    """Go on where a run was stopped. What is done is not done again; what could not be judged is tried again.

    Exit code 1 if a problem got no right kernel.
    """
    from kernelwright.evals.runs.running import Running

    with Running.resume(folder) as running:
        prepare_process()
        search_and_report(running, folder, as_json)


def replay(
    folder: options.RunArgument,
    out: Annotated[Path | None, typer.Option(help="New folder for the replayed run; default: none is kept.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object with events and digest.")] = False,
) -> None:
    """Make a run's decisions again from its record. It asks and judges nothing. Exit code 1 where one differs."""
    from kernelwright.agent.engine.replaying import replay as replay_run
    from kernelwright.agent.log.run_log import RunLog

    with RunLog.open(folder) as log, tempfile.TemporaryDirectory() as scratch:
        found = replay_run(log, out or Path(scratch) / log.header.run_id)
    if as_json:
        print(json.dumps({"run": str(folder), "same": True, **found.model_dump()}))
        return
    print(f"{folder}: {found.events} events came out the same; digest {found.digest}")
