"""The record of `bench kernelbench` that ships, as the table of docs/kernelbench.md; nothing is judged.

`python -m bench kernelbench_record` prints summary and table. To go on with the record, give its folder to the bench:
`KERNELWRIGHT_OUT=bench/records python -m bench kernelbench TREE`.
"""

import json
import statistics
from collections import Counter
from pathlib import Path
from typing import Any

from bench.gpu_facts import Report
from kernelwright.problems.formats.reading import json_lines

RECORD = Path(__file__).parent / "records" / "kernelbench-float32.jsonl"
ALL = 250
"""Problems of levels 1 to 3."""
HEAD = "| problem | outcome | against itself | 95 % interval | as shipped, ms | strict, ms | GiB | s | device |"
FASTER = 1.05
"""Times strict, from which `as shipped` counts as faster."""


def run() -> Report:
    """Summary and table; holds where every problem that was judged is the same as itself."""
    rows = read()
    return Report(f"{summary(rows)}\n\n{table(rows)}", all(row["outcome"] == "same" for row in rows))


def read() -> list[dict[str, Any]]:
    """The rows by level and number."""
    rows = [json.loads(text) for text in json_lines(RECORD.read_text(encoding="utf-8"))]
    return sorted(rows, key=lambda row: (row["problem"].partition("/")[0], int(row["problem"].partition("/")[2])))


def summary(rows: list[dict[str, Any]]) -> str:
    """What the table comes to, in a paragraph."""
    counts = ", ".join(f"{count} {outcome}" for outcome, count in Counter(row["outcome"] for row in rows).most_common())
    ratios = [row["speedup"] for row in rows if "speedup" in row]
    shipped = [(_ms(row, "eager as shipped"), _ms(row, "eager")) for row in rows]
    gains = [strict / ms for ms, strict in shipped if ms and strict and strict / ms >= FASTER]
    seconds = statistics.median(row["seconds"] for row in rows if "H100" in row["device"])
    weak = sum(bool(row.get("weak")) for row in rows)
    judged = f"All {ALL} problems are" if len(rows) == ALL else f"So far {len(rows)} of {ALL} problems are"
    said = f"{judged} judged: {counts}; {weak} of them weak. "
    said += f"Against itself: {min(ratios):.3f} to {max(ratios):.3f}, median {statistics.median(ratios):.3f}. "
    said += f"At most {max(row['gib'] for row in rows):.1f} GiB of the device; {seconds:.1f} s a problem on an H100 "
    said += f"(median). Eager as PyTorch ships is faster than strict eager by 5 % or more in {len(gains)} of them"
    return said + (f", by {max(gains):.2f} times at most." if gains else ".")


def table(rows: list[dict[str, Any]]) -> str:
    """A line each, in Markdown."""
    return "\n".join([HEAD, "|---" * HEAD.count(" | ") + "|---|", *map(_line, rows)])


def _line(row: dict[str, Any]) -> str:
    ratio = f"{row['speedup']:.3f}" if "speedup" in row else ""
    interval = "{:.3f} to {:.3f}".format(*row["interval"]) if "interval" in row else ""
    strict = _ms(row, "eager")
    shipped = _ms(row, "eager as shipped") or strict
    outcome = row["outcome"].replace("_", " ") + (", weak" if row.get("weak") else "")
    times = " | ".join("" if ms is None else f"{ms:.3f}" for ms in (shipped, strict))
    device = row["device"].removeprefix("NVIDIA ").partition(" ")[0]
    cells = (row["problem"], outcome, ratio, interval, times, f"{row['gib']:.1f}", f"{row['seconds']:.0f}", device)
    return f"| {' | '.join(cells)} |"


def _ms(row: dict[str, Any], baseline: str) -> float | None:
    found = (row.get("baselines_ms") or {}).get(baseline)
    return None if found is None else float(found)
