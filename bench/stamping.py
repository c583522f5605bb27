"""Write into the recorded sessions that ship which prompts their answers were written to.

    python -m bench.stamping runs/TIME
    python -m bench.stamping --rendered cuda H200 [bfloat16]
    python -m bench.stamping --rendered cpp

For maintainers, after a session was written, or the prompts changed and the answers were checked against them. The
first form takes the prompts of a run that played the sessions back. The second needs neither a run nor the device that
it names: it renders the prompts, and leaves the digests of those that hold measured values as they are.
"""

import re
import sys
from pathlib import Path

from kernelwright.agent.briefs import sheet_for
from kernelwright.agent.log.records import PromptOutline
from kernelwright.agent.log.store import RunLog
from kernelwright.agent.log.view import fold
from kernelwright.agent.providers.recorded import (
    SESSION_FILE,
    read_session,
    recorded_targets,
    session_folder,
    sessions_folder,
)
from kernelwright.agent.replies import Extraction, extract
from kernelwright.evals.runs import RunConfig, Running, default_size
from kernelwright.problems import catalog_names, load_problem
from kernelwright.prompts import Brief, Parent, render


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


def stamp_sessions(target: str, device: str | None = None, dtype: str | None = None) -> list[Path]:
    """Stamp each session of the target with its prompts as they are rendered now.

    Only the prompt of a first draft holds nothing measured. Of a later one the stable digest alone is written.
    """
    written = []
    for problem in catalog_names():
        if target not in recorded_targets(problem, dtype=dtype):
            continue
        folder, prompts, sources = session_folder(problem, target, dtype=dtype), {}, [""]
        for entry in read_session(problem, target, dtype=dtype).entries:
            found = extract((folder / entry.file).read_text(encoding="utf-8"))
            sources.append(found.source if isinstance(found, Extraction) else "")
            parent = None
            if entry.parent is not None:
                outcome = "failed at check" if entry.role == "repair" else "passed"
                parent = Parent(number=1, source=sources[entry.parent], outcome=outcome, evidence="measured")
            asked = load_problem(problem, default_size(problem, target), dtype)
            sheet = sheet_for(target, device)
            prompt = render(Brief(problem=asked, target=target, role=entry.role, device=sheet, parent=parent))
            outline = PromptOutline.of(prompt)
            if entry.parent is not None:
                outline = outline.model_copy(update={"digest": entry.prompt_digest})
            prompts[entry.file] = outline
        written.append(_stamped(folder / SESSION_FILE, prompts))
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
    rendered = sys.argv[1] == "--rendered"
    for session in stamp_sessions(*sys.argv[2:5]) if rendered else stamp(Path(sys.argv[1])):
        print(session)
