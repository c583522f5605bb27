"""Writing into the stories that ship which prompts their answers were written to, from a run that played them back.

    python -m evals.stamping runs/TIME

For maintainers, after a story was written or the prompts changed and the answers were checked against them.
"""

import re
import sys
from pathlib import Path

from agent.providers.story import STORY, story_folder
from agent.view import View, fold
from evals.running import Running


def stamp(folder: Path) -> list[Path]:
    """Put the digests of the run's prompts into each story that it played back whole; the files that were written."""
    with Running.resume(folder) as running:
        views = [fold(problem.name, running.log.events(problem.name)) for problem in running.problems]
        return [_stamp_story(view, running.plan.search.target) for view in views]


def _stamp_story(view: View, target: str) -> Path:
    path = story_folder(view.problem, target) / STORY  # type: ignore[arg-type]  # a plan's target is one
    prompts = {
        attempt.reply.provider_request_id: attempt.prompt for attempt in view.attempts if attempt.reply is not None
    }
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
    for story in stamp(Path(sys.argv[1])):
        print(story)
