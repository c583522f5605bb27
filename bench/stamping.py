"""Writing into the stories that ship which prompts their answers were written to, from a run that played them back.

    python -m bench.stamping runs/TIME
    python -m bench.stamping --drafts cuda H200 [bfloat16]

For maintainers, after a story was written or the prompts changed and the answers were checked against them. The second
form needs neither a run nor the device that it names: it is for the stories of a target that are a first draft alone,
whose prompt holds nothing measured.
"""

import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from kernelwright.agent.log.store import RunLog
from kernelwright.agent.log.view import View, fold
from kernelwright.agent.providers.recorded import (
    SESSION_FILE,
    read_session,
    recorded_targets,
    session_folder,
    sessions_folder,
)
from kernelwright.evals.runs import Plan, PromptChoice, Running, show_prompt
from kernelwright.problems import catalog_names
from kernelwright.prompts import Target


class Digested(Protocol):
    """A prompt, or what a run keeps of one."""

    @property
    def digest(self) -> str:
        """Of the whole text."""
        ...

    @property
    def stable_digest(self) -> str:
        """Of what is the same on every machine."""
        ...


def stamp(folder: Path) -> list[Path]:
    """Put the digests of the run's prompts into each story that it played back whole; the files that were written."""
    with RunLog.open(folder) as log:
        running = Running(log, Plan.model_validate(log.header.config))
        views = [fold(problem.name, log.events(problem.name)) for problem in running.problems]
        target, catalog = running.plan.search.target, sessions_folder(getattr(running.plan.provider, "folder", None))
        folders = [session_folder(one.name, target, catalog, one.dtype) for one in running.problems]  # type: ignore[arg-type]
        return [_stamp_story(view, folder) for view, folder in zip(views, folders, strict=True)]


def stamp_drafts(target: Target, device: str, dtype: str | None = None) -> list[Path]:
    """Put the digests of the prompts rendered now into each story of the target that is one first draft."""
    written = []
    for problem in catalog_names():
        if target not in recorded_targets(problem, dtype=dtype):
            continue
        entries = read_session(problem, target, dtype=dtype).entries
        if len(entries) == 1:
            choice = PromptChoice(problem=problem, role="propose", target=target, device=device, dtype=dtype)
            path = session_folder(problem, target, dtype=dtype) / SESSION_FILE
            written.append(_stamped(path, {entries[0].file: show_prompt(choice)}))
    return written


def _stamp_story(view: View, folder: Path) -> Path:
    prompts = {
        attempt.reply.provider_request_id: attempt.prompt for attempt in view.attempts if attempt.reply is not None
    }
    return _stamped(folder / SESSION_FILE, prompts)


def _stamped(path: Path, prompts: Mapping[str | None, Digested]) -> Path:
    """Write each entry's digests; all of them or none."""
    head, *entries = path.read_text(encoding="utf-8").split("[[entries]]")
    written = []
    for entry in entries:
        name = re.search(r'file = "(.+)"', entry)
        if name is None or name[1] not in prompts:
            raise SystemExit(
                f"{path}: the run did not play back {name[1] if name else 'an entry'}; nothing was written"
            )
        prompt = prompts[name[1]]
        stamped = re.sub(r'(?m)^prompt_digest = ".*"', f'prompt_digest = "{prompt.digest}"', entry)
        written.append(re.sub(r'(?m)^stable_digest = ".*"', f'stable_digest = "{prompt.stable_digest}"', stamped))
    path.write_text("[[entries]]".join([head, *written]), encoding="utf-8")
    return path


if __name__ == "__main__":
    drafts = sys.argv[1] == "--drafts"
    for story in stamp_drafts(*sys.argv[2:5]) if drafts else stamp(Path(sys.argv[1])):  # type: ignore[arg-type]
        print(story)
