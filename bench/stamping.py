"""Write into the recorded sessions that ship which prompts their answers were written to.

    python -m bench.stamping runs/TIME
    python -m bench.stamping --drafts cuda H200 [bfloat16]

For maintainers, after a session was written, or the prompts changed and the answers were checked against them. The
first form takes the prompts of a run that played the sessions back. The second needs neither a run nor the device that
it names: it is for sessions of one first draft, whose prompt holds nothing measured.
"""

import re
import sys
from pathlib import Path

from kernelwright.agent.log.store import RunLog
from kernelwright.agent.log.view import fold
from kernelwright.agent.providers.recorded import (
    SESSION_FILE,
    read_session,
    recorded_targets,
    session_folder,
    sessions_folder,
)
from kernelwright.evals.runs import PromptChoice, RunConfig, Running, show_prompt
from kernelwright.problems import catalog_names


def stamp(folder: Path) -> list[Path]:
    """Stamp each session that the run played back to its end; return the files that were written."""
    written = []
    with RunLog.open(folder) as log:
        running = Running(log, RunConfig.model_validate(log.header.config))
        target, catalog = running.plan.search.target, sessions_folder(getattr(running.plan.provider, "folder", None))
        for problem in running.problems:
            attempts = fold(problem.name, log.events(problem.name)).attempts
            prompts = {one.reply.provider_request_id: one.prompt for one in attempts if one.reply is not None}
            folder = session_folder(problem.name, target, catalog, problem.dtype)
            written.append(_stamped(folder / SESSION_FILE, prompts))
    return written


def stamp_drafts(target: str, device: str, dtype: str | None = None) -> list[Path]:
    """Stamp each session of the target that is one first draft with the prompt as it is rendered now."""
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


def _stamped(path: Path, prompts: dict) -> Path:
    """Write the digests of each entry's prompt, by the entry's file; all of them or none."""
    head, *entries = path.read_text(encoding="utf-8").split("[[entries]]")
    written = []
    for entry in entries:
        name = re.search(r'file = "(.+)"', entry)
        if name is None or name[1] not in prompts:
            raise SystemExit(
                f"{path}: the run did not play back {name[1] if name else 'an entry'}; nothing was written"
            )
        for key in ("prompt_digest", "stable_digest"):
            value = getattr(prompts[name[1]], key.removeprefix("prompt_"))
            entry = re.sub(rf'(?m)^{key} = ".*"', f'{key} = "{value}"', entry)  # noqa: PLW2901
        written.append(entry)
    path.write_text("[[entries]]".join([head, *written]), encoding="utf-8")
    return path


if __name__ == "__main__":
    drafts = sys.argv[1] == "--drafts"
    for session in stamp_drafts(*sys.argv[2:5]) if drafts else stamp(Path(sys.argv[1])):
        print(session)
