"""A child that runs nothing of the candidate itself, and starts a tool of the CUDA toolkit around another that does.

The tool, and the program below it (`gpu_once`), are in the same jail. They and their report belong to the
candidate's user, so what is told here is a hint.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from kernelwright_child.programs.serving import Handler, Message

START = (
    f"import sys; sys.path.insert(0, {str(Path(__file__).parent.parent.parent)!r}); "
    "from kernelwright_child.programs.gpu_once import main; main(sys.argv[1:])"
)
START_BYTES, END_BYTES = 60_000, 4000
"""Of a report; what was printed is told from its end alone. All of it is one message."""


class Tools:
    """Holds what a call needs, and makes the call under a tool."""

    def __init__(self) -> None:
        self._kept: dict[str, dict[str, Any]] = {}

    def handlers(self) -> dict[str, Handler]:
        return {"keep": self.keep, "under tool": self.run}

    def keep(self, message: Message, fds: list[int]) -> Message:
        """Hold the memory of a tree's tensors, for the program to map: nobody promises that a tool hands it on."""
        path = f"/proc/{os.getpid()}/fd/{fds[0]}" if fds else None
        self._kept[message["name"]] = {"tree": message["tree"], "path": path, "specs": message.get("specs", [])}
        return {}

    def run(self, message: Message, fds: list[int]) -> Message:
        """The exit code of the tool, its report, and the end of what it and the program printed.

        `command` are the words in front of the program's own, `environment` is what they need beside this child's,
        `plan` is for `gpu_once.main`; in all of them `{report}` stands for the file of the report.
        """
        os.sched_setaffinity(0, message["cores"])
        folder = Path(os.environ["TMPDIR"])
        plan, report, printed = (folder / name for name in ("plan.json", "report.txt", "printed.txt"))
        plan.write_text(json.dumps(message["plan"] | {"kept": self._kept}))
        report.unlink(missing_ok=True)
        front = [word.replace("{report}", str(report)) for word in message["command"]]
        with printed.open("wb") as output:
            done = subprocess.run(
                [*front, sys.executable, "-I", "-c", START, str(plan)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **message["environment"]},
                check=False,
            )
        return {"code": done.returncode, "report": _text(report), "printed": _text(printed)[-END_BYTES:]}


def _text(path: Path) -> str:
    """The start and the end of a file; empty where there is none that can be read."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(fd, "rb") as file:
            head = file.read(START_BYTES)
            size = file.seek(0, os.SEEK_END)
            file.seek(max(len(head), size - END_BYTES))
            return (head + file.read(END_BYTES)).decode(errors="replace")
    except (OSError, ValueError):
        return ""
