"""The choice as a table for a terminal, with what could not be cut, and why."""

from collections.abc import Iterator

from rich.table import Table

from kernelwright.programs.record.capture_folder import CapturedProgram, Chosen, Split

MOST_UNCUT = 5


def split_table(captured: CapturedProgram, split: Split) -> Table:
    """A row for each chosen part."""
    table = Table(title=summary(captured, split), title_justify="left", box=None, pad_edge=False)
    for name, right in (("part", False), ("what", False), ("places", True), ("calls", True), ("ms", True)):
        table.add_column(name, justify="right" if right else "left", no_wrap=name == "part")
    for name in ("of all", "floor ms", *(["compiled ms"] if split.compiled else []), "to gain"):
        table.add_column(name, justify="right")
    for one in split.chosen:
        table.add_row(*_cells(captured, split, one))
    return table


def _cells(captured: CapturedProgram, split: Split, one: Chosen) -> Iterator[str]:
    part = captured.part(one.part)
    wanted = set(one.sites)
    calls = sum(site.calls for size in part.sizes for site in size.sites if (site.root, site.module) in wanted)
    yield from (one.part, _what(captured, one), str(len(one.sites)), str(calls), f"{one.ms:.3g}")
    yield f"{100 * one.share:.1f} %"
    yield f"{one.floor_ms:.3g}" if one.floor_ms else "?"
    if split.compiled:
        yield f"{one.compiled_ms:.3g}" if one.compiled_ms else "?"
    yield f"{100 * one.gain_ms / split.program_ms:.1f} %"


def _what(captured: CapturedProgram, one: Chosen) -> str:
    part = captured.part(one.part)
    shapes = ", ".join(given.tensor.words for given in part.sizes[0].inputs[:2])
    more = f" and {len(part.sizes) - 1} more sizes" if len(part.sizes) > 1 else ""
    return f"{part.title} ({shapes}{more})"


def summary(captured: CapturedProgram, split: Split) -> str:
    """`12 ms a step on AMD EPYC; 61 % of it lies in 3 parts, and at most 40 % could be had`."""
    share = sum(one.share for one in split.chosen)
    gain = sum(one.gain_ms for one in split.chosen) / split.program_ms if split.program_ms else 0.0
    step_ms = captured.program_ms / captured.steps
    count = f"{len(split.chosen)} part{'' if len(split.chosen) == 1 else 's'}"
    return (
        f"{step_ms:.3g} ms a step on {captured.device}; {100 * share:.0f} % of it lies in {count}, "
        f"and at most {100 * gain:.0f} % could be had"
    )


def uncut_lines(captured: CapturedProgram) -> list[str]:
    """A sentence for each module that could not be cut out, the dearest first."""
    dearest = sorted(captured.uncut, key=lambda one: -one.ms)
    lines = [
        f"{'.'.join(filter(None, (one.root, one.module)))} ({100 * one.ms / max(captured.program_ms, 1e-9):.0f} % of "
        f"the time) is not cut out {f'at {one.run}' if one.run else 'as a whole'}: {one.why}"
        for one in dearest[:MOST_UNCUT]
    ]
    return lines + ([f"and {len(dearest) - MOST_UNCUT} more in capture.json"] if len(dearest) > MOST_UNCUT else [])
