"""`kernelwright run`: search for kernels, judge them, keep the best."""

from pathlib import Path
from typing import Annotated

import typer

from kernelwright.commands.policies import jail_policy
from kernelwright.commands.running import go
from kernelwright.commands.searching import RECORDED_CHOICES, checked_config, search_options
from kernelwright.endings import UserMistake


def run(
    problems: Annotated[list[str] | None, typer.Argument(help="Catalog names, or paths of .py files.")] = None,
    suite: Annotated[str | None, typer.Option(help="demo, catalog or seeds.")] = None,
    model: Annotated[str | None, typer.Option(help="Model to ask; without one the recorded answers are used.")] = None,
    base_url: Annotated[str | None, typer.Option(help="Server that speaks OpenAI's chat completions.")] = None,
    api_key_env: Annotated[str, typer.Option(help="Environment variable that holds the key.")] = "OPENAI_API_KEY",
    target: Annotated[str, typer.Option(help="cpp, cuda or triton.")] = "cpp",
    size: Annotated[str | None, typer.Option(help="cpu or gpu; default: what fits the target.")] = None,
    strategy: Annotated[
        str, typer.Option(help="refine, best_of, beam, pool, elites, islands, tree, race, or file.py:function.")
    ] = "refine",
    attempts: Annotated[int, typer.Option(min=1, help="Budget for each problem.")] = 10,
    slots: Annotated[int, typer.Option(min=1, help="Attempts in flight at once for a problem.")] = 1,
    at_once: Annotated[int, typer.Option(min=1, help="Problems that are searched at once.")] = 1,
    without: Annotated[list[str] | None, typer.Option(help="Leave a prompt section out; may be repeated.")] = None,
    prices: Annotated[Path | None, typer.Option(help="Price table (TOML), for budgets in USD.")] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="Any other search setting, as budget.usd=2.5 or patience=20; may be repeated."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="New folder for the run; default: runs/TIME.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the search's own choices.")] = 0,
    jail: Annotated[str, typer.Option(help="auto, strict or off.")] = "auto",
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object a problem at the end, nothing else.")
    ] = False,
) -> None:
    """Search for a faster kernel for each problem. With no model, play back the recorded answers, judged afresh."""
    from agent.prices import load_prices
    from agent.providers.openai import OpenAISettings
    from evals.prompting import default_size
    from evals.running import RECORDED, Plan, Running, new_folder
    from evals.suites import suite as problems_of
    from problems import load_problem
    from prompts import SECTION_NAMES
    from prompts.targets import TARGETS
    from sandbox.settings import Settings

    if target not in TARGETS:
        raise UserMistake(f"no target {target!r}; there are: {', '.join(TARGETS)}")
    if bool(problems) == bool(suite):
        raise UserMistake("name problems or a --suite, one of the two; `kernelwright problems list` shows the problems")
    names = list(problems or problems_of(str(suite), target))
    if not names:
        raise UserMistake(f"suite {suite!r} has no problem for target {target!r}; try --target cpp")
    found = [load_problem(name, size or default_size(name, target)) for name in names]
    unknown = sorted(set(without or ()) - set(SECTION_NAMES))
    if unknown:
        raise UserMistake(f"no section {unknown[0]!r} to leave out; there are: {', '.join(SECTION_NAMES)}")
    load_prices(None if prices is None else str(prices))
    config = {} if model else dict(RECORDED_CHOICES)
    config |= {"target": target, "model": model or RECORDED, "strategy": strategy, "attempts": attempts, "seed": seed}
    config |= {"slots": slots, "problems_at_once": at_once, "without": without or []}
    config |= {"prices": None if prices is None else str(prices.resolve())} | search_options(settings or ())
    plan = Plan(
        judging=Settings(jail=jail_policy(jail)),
        search=checked_config(config),
        server=OpenAISettings(base_url=base_url, api_key_env=api_key_env) if model else None,
    )
    if base_url and not model:
        raise UserMistake("--base-url names a server but no model was given; add --model")
    folder = new_folder(out)
    with Running.start(folder, found, plan) as running:
        go(running, folder, as_json)
