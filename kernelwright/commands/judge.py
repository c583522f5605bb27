"""`kernelwright judge`: one candidate, one honest verdict."""

import ast
import json
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from kernelwright.commands.executing import PROFILE_HELP, SANITIZE_HELP, check_threads, check_tools
from kernelwright.commands.files import read_text
from kernelwright.commands.policies import compile_modes, jail_policy
from kernelwright.endings import DONE, FELL_SHORT, UserMistake

if TYPE_CHECKING:
    from sandbox.verdict import Language


def judge(
    problem: Annotated[
        str | None, typer.Argument(help="Catalog name, path of a .py file in the KernelBench convention, or PATH::ID.")
    ] = None,
    candidate: Annotated[str | None, typer.Argument(help="File that defines ModelNew; - for standard input.")] = None,
    size: Annotated[
        str | None, typer.Option(help="Size of a catalog problem: cpu or gpu; default: what fits the candidate.")
    ] = None,
    threads: Annotated[
        int | None, typer.Option(min=1, help="Threads of candidate and baseline; default: all cores.")
    ] = None,
    compiled: Annotated[
        list[str] | None,
        typer.Option("--compile", help="Measure against this torch.compile mode too; may be repeated."),
    ] = None,
    backward: Annotated[bool, typer.Option("--backward", help="Judge and time the gradients too.")] = False,
    pairs: Annotated[int | None, typer.Option(min=4, help="At least so many timed pairs; default: 20.")] = None,
    sanitize: Annotated[bool, typer.Option("--sanitize", help=SANITIZE_HELP)] = False,
    profile: Annotated[bool, typer.Option("--profile", help=PROFILE_HELP)] = False,
    jail: Annotated[str, typer.Option(help="Layers around what is judged: auto, strict or off.")] = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object with stable keys, nothing else.")] = False,
    record: Annotated[
        str | None,
        typer.Option("--recheck", help="Only compute a file of `judge --json` again, from its own raw samples."),
    ] = None,
) -> None:
    """Judge one candidate file. Exit code 1 if it failed, or if a record does not hold."""
    if record is not None and problem is not None:
        raise UserMistake(f"--recheck {record} judges nothing; leave {problem} out, or leave out --recheck")
    if record is not None:
        _recheck(record, as_json)
    if problem is None or candidate is None:
        raise UserMistake("judge needs a problem and a candidate file; or --recheck with a record of `judge --json`")
    from problems import catalog_names, load_problem
    from sandbox.machine import ON_DEVICE, needs_device
    from sandbox.own_process import become_a_judge

    source = read_text(candidate, "candidate file")
    language = _language(source)
    if size is None and language in ON_DEVICE and problem in catalog_names():
        size = "gpu"
    found = load_problem(problem, size)
    if backward:
        found = found.model_copy(update={"direction": "both"})
    policy, modes, gpu = jail_policy(jail), compile_modes(compiled or []), needs_device(language, found.size)
    check_tools(sanitize, profile, gpu, local=False)
    check_threads(threads)
    become_a_judge(threads)
    # All of these import torch, which the process that has just been started does too.
    from sandbox.judges import Judges
    from sandbox.report import report
    from sandbox.settings import Settings
    from sandbox.verdict import Candidate

    check_tools(sanitize, profile, gpu)
    given: dict[str, Any] = {"threads": threads, "min_pairs": pairs, "max_pairs": pairs and max(60, 3 * pairs)}
    settings = Settings(
        jail=policy,
        device="cuda" if gpu else "cpu",
        compiled=modes,
        sanitize=sanitize,
        profile=profile,
        **{key: value for key, value in given.items() if value is not None},
    )
    with Judges(settings) as judges:
        verdict = judges.judge(found, Candidate(source=source, language=language))
    print(json.dumps(report(verdict)) if as_json else words(report(verdict)))
    raise typer.Exit(DONE if verdict.outcome == "passed" else FELL_SHORT)


def _recheck(path: str, as_json: bool) -> NoReturn:
    """Compare every derived number of a record with what its samples give; never returns."""
    from sandbox.recheck import RecordError, recheck

    try:
        found = json.loads(read_text(path, "record"))
    except ValueError as error:
        raise UserMistake(f"the record {path} is no JSON ({error}); use a file of `judge --json`") from None
    if not isinstance(found, dict):
        raise UserMistake(f"the record {path} is no JSON object; use a file of `judge --json`")
    try:
        differences = recheck(found)
    except RecordError as error:
        raise UserMistake(str(error)) from None
    if as_json:
        print(json.dumps({"agrees": not differences, "differences": differences}))
    elif differences:
        for key, (said, computed) in differences.items():
            print(f"{key}: the record says {said}, its samples say {computed}")
    else:
        print(f"the record agrees with its {len(found['samples'][0]['candidate_ms'])} samples: {_success(found)}")
    raise typer.Exit(FELL_SHORT if differences else DONE)


def _language(source: str) -> "Language":
    """What the source asks for; text that is no Python needs nothing, since the scan refuses it."""
    from agent.extraction import language_of

    try:
        return language_of(ast.parse(source))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return "python"


def words(found: dict[str, Any]) -> str:
    """A report for a person."""
    lines = [_failure(found) if found["outcome"] == "failed" else _success(found)]
    status = found["problem_status"]
    if status and status["status"] == "weak":
        lines.append(f"weak problem: {'; '.join(status['why'])}")
    authenticity = found["authenticity"]
    lines.append(f"kernel: {authenticity['label']} ({'; '.join(authenticity['evidence'])})")
    lines += [f"a build failed and was hidden: {line}" for line in found["hidden_builds"]]
    lines += _look(found["look"])
    lines.append("jail: " + (", ".join(found["jail"]) or "nothing was run"))
    lines.append("seconds: " + ", ".join(f"{stage} {seconds:.2f}" for stage, seconds in found["seconds"].items()))
    return "\n".join(lines)


def _look(look: dict[str, Any] | None) -> list[str]:
    """What the tools said that were asked for."""
    from sandbox.gpu.findings import Look

    seen = Look.model_validate_json(json.dumps(look)) if look else Look()
    lines = [f"memcheck: {seen.memcheck}"] if seen.memcheck else []
    return [*lines, *(seen.lines() if seen.counters or seen.obstacle else ())]


def _failure(found: dict[str, Any]) -> str:
    return f"failed at {found['stage']}: {found['reason']}" + (f"\n{found['log']}" if found["log"] else "")


def _success(found: dict[str, Any]) -> str:
    baselines = ", ".join(f"{name} {ms:.3f} ms" for name, ms in found["baselines_ms"].items())
    floor = ""
    if found.get("floor_ms") is not None:
        floor = (
            f"; the floor is {found['floor_ms']:.3g} ms, {100 * found['floor_ms'] / found['candidate_ms']:.0f} % of it"
        )
    against = f" against {found['against']}" if found.get("against") and len(found["baselines_ms"]) > 1 else ""
    return (
        f"passed: {found['speedup']:.2f} x [{found['speedup_low']:.2f}, {found['speedup_high']:.2f}]{against}, "
        f"{found['comparison'].replace('_', ' ')}; candidate {found['candidate_ms']:.3f} ms, {baselines}{floor}"
    )
