"""The options that several commands share, each declared once: words, check of the form, and no default.

A command takes one as the annotation of a parameter, and gives the default beside it: `device: DeviceOption = None`.
What they come to is checked in `judging_options`, `executor_options` and `search_options`.
"""

from pathlib import Path
from typing import Annotated, Any

import typer

DeviceOption = Annotated[
    str | None,
    typer.Option(
        "--device",
        help="Where it runs: cpu, cuda or cuda:N; default: a GPU, unless there is none or it is for processors.",
    ),
]
DtypeOption = Annotated[
    str | None,
    typer.Option(
        "--dtype",
        help="Cast weights and floating inputs: float32, float16 or bfloat16 (fp32, fp16, bf16); default: as they are.",
    ),
]
MemoryOption = Annotated[
    str | None,
    typer.Option(
        "--memory",
        help="Memory that may be taken, as 24GiB: of a processor by each child, of a GPU by all; default: what fits.",
    ),
]
ThreadsOption = Annotated[
    int | None,
    typer.Option("--threads", min=1, help="Threads of candidate and baseline; default: all cores."),
]
CompileOption = Annotated[
    list[str] | None,
    typer.Option("--compile", help="Measure against this torch.compile mode too; may be repeated."),
]
BaselinesOption = Annotated[
    str | None,
    typer.Option(
        "--baselines",
        help="On a GPU: shipped,tf32,channels_last by default; or none, compiled-tf32, compiled-shipped (slow).",
    ),
]
EffortOption = Annotated[
    str,
    typer.Option(
        "--effort",
        help="What a verdict may cost: screen (right or wrong), search (enough to choose) or rank (to be published).",
    ),
]
JailOption = Annotated[str, typer.Option("--jail", help="Layers around what is judged: auto, strict or off.")]
SanitizeOption = Annotated[
    bool,
    typer.Option(
        "--sanitize",
        help="On a GPU: what is right is run once more under compute-sanitizer; a faulty access fails it.",
    ),
]
ProfileOption = Annotated[
    bool,
    typer.Option(
        "--profile", help="On a GPU: what is right is profiled; ncu's counters go into the verdict and the next prompt."
    ),
]
ExecutorOption = Annotated[str, typer.Option("--executor", help="Where judging runs: local or ray.")]
AddressOption = Annotated[
    str | None, typer.Option("--address", help="HOST:PORT of a Ray cluster; default: one made here.")
]
KindOption = Annotated[str | None, typer.Option("--kind", help="Judge only on devices with this in their name.")]
ServerOption = Annotated[
    str | None,
    typer.Option(
        "--server",
        envvar="KERNELWRIGHT_SERVER",
        help="Judge by a running `kernelwright serve`: unix:PATH or http://HOST:PORT; default: here.",
    ),
]
WithoutOption = Annotated[
    list[str] | None, typer.Option("--without", help="Leave a prompt section out; may be repeated.")
]
PresetsOption = Annotated[Path | None, typer.Option("--presets", help="Table of further servers (TOML).")]
RunArgument = Annotated[Path, typer.Argument(help="Folder of the run.")]


def size_option(default: str, problems: str = "a catalog problem") -> Any:
    """`--size`; what it is by default depends on the command, in whose words it is told."""
    return typer.Option("--size", help=f"Size of {problems}: cpu or gpu; default: {default}.")


def devices_option(default: str) -> Any:
    """`--devices`, likewise."""
    return typer.Option(
        "--devices", min=1, help=f"How many GPUs, or equal parts of the cores, judge here; default: {default}."
    )
