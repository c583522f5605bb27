"""`kernelwright judge`: one candidate, one honest verdict."""

import asyncio
import json
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from kernelwright import options
from kernelwright.problems.source import parse_module
from kernelwright.terminal import DONE, FELL_SHORT, UserMistake, json_option, read_text

if TYPE_CHECKING:
    from kernelwright.problems import Problem
    from kernelwright.sandbox.verdict.settings import JudgeSettings

FENCE = "```"


def judge(
    problem: Annotated[
        str | None, typer.Argument(help="Catalog name, path of a .py file in the KernelBench convention, or PATH::ID.")
    ] = None,
    candidate: Annotated[
        str | None,
        typer.Argument(help="File that defines ModelNew, or a model's reply with one; - for standard input."),
    ] = None,
    judging: options.JudgingOptions = options.RANKING,
    backward: Annotated[bool, typer.Option("--backward", help="Judge and time the gradients too.")] = False,
    pairs: Annotated[int | None, typer.Option(min=4, help="The least number of timed pairs; default: 20.")] = None,
    server: options.ServerOption = None,
    as_json: Annotated[bool, json_option("One JSON object with stable keys, nothing else.")] = False,
    record: Annotated[
        str | None,
        typer.Option(
            "--recheck",
            help="Only compute stored records again, from their raw samples: a file of `judge --json`, RUN:PROBLEM/3, "
            "a run, the --out of a score, FILE.jsonl.gz:LINE.",
        ),
    ] = None,
) -> None:
    """Judge one candidate file. Exit code 1 if it failed, or if a record does not hold."""
    if record is not None and problem is not None:
        raise UserMistake(f"--recheck {record} judges nothing; leave {problem} out, or leave out --recheck")
    if record is not None:
        _recheck(record, as_json)
    if problem is None or candidate is None:
        raise UserMistake("judge needs a problem and a candidate file; or --recheck with a stored record")
    from kernelwright.sandbox.jail.zygote import frozen_imports, prepare_judge
    from kernelwright_child import driver

    if server is None:
        options.check_threads(judging.threads)
        prepare_judge(judging.threads)  # first of all: the process that it starts imports torch, which takes longest
    from kernelwright.problems import load_problem
    from kernelwright.sandbox.authenticity.scan import candidate_of
    from kernelwright.sandbox.machine import require_tools

    size = judging.size
    source = _source_in(read_text(candidate, "candidate file"), candidate)
    asked = candidate_of(source)
    where = options.device_for(judging.device, asked.language, load_problem(problem, size).size, local=server is None)
    found = load_problem(problem, options.size_for(problem, size, where), judging.dtype)
    if backward:
        found = found.model_copy(update={"direction": "both"})
    chosen = {} if pairs is None else {"min_pairs": pairs, "max_pairs": max(60, 3 * pairs)}
    settings = judging.settings(where, **chosen)
    judging.check_tools(settings.gpu, local=False)
    if server is not None:
        place = None if judging.device is None and where == "cpu" else where.partition(":")[0]
        _print(asyncio.run(_served(server, found, source, settings, place)), found.dtype, as_json)
    if settings.gpu:
        driver.begin_context(settings.ordinal)
    with frozen_imports():  # all of these import torch
        from kernelwright.sandbox.pool.judges import Judges
        from kernelwright.sandbox.verdict.report import report

    require_tools(asked.language)
    judging.check_tools(settings.gpu)
    with stages_shown(), Judges(settings, is_lasting=False) as judges:
        verdict = judges.judge(found, asked)
    _print(report(verdict), found.dtype, as_json)


@contextmanager
def stages_shown() -> Iterator[None]:
    """Show the stage of a judging in one line of a terminal's standard error, which is empty again at the end."""
    if not sys.stderr.isatty() or logging.getLogger("kernelwright").isEnabledFor(logging.INFO):
        yield
        return
    from kernelwright.sandbox.judge.stages import listeners

    def show(stage: str) -> None:
        # Back at the line's begin, so that other output replaces it.
        print(f"\x1b[K{stage} ...\r" if stage else "\x1b[K", end="", file=sys.stderr, flush=True)

    listeners.append(show)
    show("set-up")
    try:
        yield
    finally:
        listeners.remove(show)
        show("")


def _print(report: dict[str, Any], dtype: str | None, as_json: bool) -> NoReturn:
    print(json.dumps(report) if as_json else words(report, dtype))
    raise typer.Exit(DONE if report["outcome"] == "passed" else FELL_SHORT)


async def _served(
    server: str, problem: "Problem", source: str, settings: "JudgeSettings", device: str | None
) -> dict[str, Any]:
    from kernelwright.sandbox.pool.client import RefusedJob, ServiceClient, chosen_for_jobs, job_request
    from kernelwright.sandbox.verdict.errors import BrokenProblem, MachineError

    try:
        job = await ServiceClient(server).judge(job_request(problem, source, chosen_for_jobs(settings), device))
    except RefusedJob as error:
        raise UserMistake(str(error)) from None
    if job["report"] is not None:
        return dict(job["report"])
    why = job["error"] or {"message": f"the job {job['id']} was cancelled", "machine_lacks": True}
    raise (MachineError if why["machine_lacks"] else BrokenProblem)(why["message"])


def _recheck(text: str, as_json: bool) -> NoReturn:
    """Compare every derived number of stored records with what their samples give."""
    from kernelwright.commands.stored_records import stored_records
    from kernelwright.sandbox.verdict.report import RecordError, measurement_of, recheck, three_times

    records = {one.names[0]: one.report for one in stored_records(text)}
    passed = {name: found for name, found in records.items() if found.get("outcome") == "passed"}
    try:
        found = {name: recheck(one) for name, one in (passed or records).items()}
    except RecordError as error:
        raise UserMistake(str(error)) from None
    differences = {name: one for name, one in found.items() if one}
    if as_json:
        listed = differences if len(records) > 1 else next(iter(differences.values()), {})
        counts = {"records": len(records), "without_samples": len(records) - len(passed)}
        print(json.dumps({"agrees": not differences, "differences": listed} | counts))
        raise typer.Exit(FELL_SHORT if differences else DONE)
    for name, one in differences.items():
        for key, (said, computed) in one.items():
            print(f"{f'{name}: ' if len(records) > 1 else ''}{key}: the record says {said}, its samples say {computed}")
    if len(records) > 1:
        print(f"{len(passed)} of {len(records)} records rest on samples; {len(differences)} of them differ")
    elif not differences:
        (one,) = records.values()
        count = len(one["samples"][0]["candidate_ms"])
        print(f"the record agrees with its {count} samples: {_success(one | three_times(measurement_of(one)))}")
    raise typer.Exit(FELL_SHORT if differences else DONE)


def _source_in(text: str, name: str) -> str:
    """Return the text, or the source in it where it is a model's whole reply with fenced code."""
    try:
        parse_module(text)
        return text
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        if FENCE not in text:
            return text
    from kernelwright.agent.replies import Extraction, extract

    found = extract(text)
    if not isinstance(found, Extraction):
        return text
    print(f"kernelwright: {name} is a whole reply; what is judged: {found.how}", *found.warnings, file=sys.stderr)
    return found.source


def words(found: dict[str, Any], dtype: str | None = None) -> str:
    from kernelwright.sandbox.verdict.diagnoses import lines_of
    from kernelwright.sandbox.verdict.verdicts import Look, Measurement

    failure = f"failed at {found['stage']}: {found['reason']}" + (f"\n{found['log']}" if found["log"] else "")
    lines = [failure if found["outcome"] == "failed" else _success(found), *_three_times(found)]
    status = found["problem_status"]
    if status and status["status"] == "weak":
        lines.append(f"weak problem: {'; '.join(status['why'])}")
    authenticity = found["authenticity"]
    lines.append(f"kernel: {authenticity['label']} ({'; '.join(authenticity['evidence'])})")
    lines += [f"a build failed and was hidden: {line}" for line in found["hidden_builds"]]
    seen = Look.model_validate_json(json.dumps(found["look"])) if found["look"] else Look()
    lines += [f"memcheck: {seen.memcheck}"] if seen.memcheck else []
    if found["outcome"] == "passed" and (seen.counters or seen.obstacle or seen.code):
        lines += lines_of(Measurement.model_validate(found["measurement"] | {"pairings": found["samples"]}), seen)
    if found["effort"] != "rank":
        left = f"; left out: {', '.join(found['not_met'])}" if found["not_met"] else ""
        lines.append(f"effort: {found['effort']}{left}")
    lines.append(f"device: {options.device_words(found['device'], dtype)}")
    lines.append("jail: " + (", ".join(found["jail"]) or "nothing was run"))
    lines.append("seconds: " + ", ".join(f"{stage} {seconds:.2f}" for stage, seconds in found["seconds"].items()))
    return "\n".join(lines)


def _success(found: dict[str, Any]) -> str:
    from kernelwright.sandbox.verdict.report import DOUBTS, marks, others_words, ratio_words

    baselines = ", ".join(f"{name} {ms:.3f} ms" for name, ms in found["baselines_ms"].items())
    floor, floor_ms = "", found.get("floor_ms")
    if floor_ms is not None:
        floor = f"; {100 * floor_ms / found['candidate_ms']:.0f} % of the roofline, {floor_ms:.3g} ms"
    against = f" against the fastest, {found['against']}" if len(found["baselines_ms"]) > 1 else ""
    others = others_words(found.get("speedups") or {}, found.get("against"), found.get("less_accurate") or ())
    said = found["comparison"].replace("_", " ") + marks(None, found.get("timing_clock"), weights=found.get("weights"))
    doubt = f" ({DOUBTS[found['comparison']]})" if found["comparison"] in DOUBTS else ""
    return (
        f"passed: {ratio_words(found['speedup'], found['speedup_low'], found['speedup_high'])}{against}, "
        f"{said}{doubt}{others}; candidate {found['candidate_ms']:.3f} ms, {baselines}{floor}"
    )


LAUNCH_BOUND = "launch-bound: the host takes longer to issue a call than the GPU to run it; use a CUDA graph"


def _three_times(found: dict[str, Any]) -> list[str]:
    times, lines = found.get("times") or {}, []
    for key, name in (("gpu_time_ms", "GPU time"), ("call_latency_ms", "call latency"), ("host_time_ms", "host time")):
        known = {side: times.get(side, {}).get(key) for side in ("candidate", found.get("against"))}
        if shown := ", ".join(f"{side} {ms:.4g} ms" for side, ms in known.items() if ms is not None):
            lines.append(f"{name}: {shown}")
    return [*lines, *([LAUNCH_BOUND] if found.get("launch_bound") else [])]
