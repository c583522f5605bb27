"""`files`: a folder of tasks and answers that a person or a coding agent fills.

Each request is a file `PROBLEM-DIGEST.task.md`, the prompt word for word; its answer is `PROBLEM-DIGEST.answer.md` next
to it, as a model would reply. A missing answer ends the search with a sentence; a resumed run sends the same request,
and finds the answers written meanwhile.
"""

from pathlib import Path

from kernelwright.agent.compat import is_named_by_digest
from kernelwright.agent.config import FilesOptions
from kernelwright.agent.log.records import Ask, Reply, Request
from kernelwright.agent.log.store import RunLog
from kernelwright.agent.providers import AnswerPending, Provider, ProviderError
from kernelwright.problems.formats.reading import safe_name
from kernelwright.prompts import Prompt
from kernelwright.sandbox.storage import write_atomically

TASK, ANSWER = ".task.md", ".answer.md"
TASKS = "tasks"  # the folder of both in a run's own, unless another is named
SHOWN = 3


class FilesProvider:
    name = "files"

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    async def complete(self, request: Request, ask: Ask, prompt: Prompt) -> Reply:
        """Read the answer in the folder. Raises `AnswerPending`, which names the missing ones."""
        older = is_named_by_digest(self.folder, request.digest, (TASK, ANSWER))
        stem = request.digest if older else f"{safe_name(ask.problem)}-{request.digest[:16]}"
        answer = self.folder / f"{stem}{ANSWER}"
        try:
            task = self.folder / f"{stem}{TASK}"
            if not task.is_file():
                write_atomically(task, request.prompt)
            text = answer.read_text(encoding="utf-8-sig", errors="replace") if answer.is_file() else ""
        except OSError as error:
            why = f"cannot use the folder of tasks {self.folder} ({error})"
            raise ProviderError(f"{why}; make it readable and writable") from error
        if not text.strip():
            missing = self.missing()
            names = ", ".join(path.name for path in missing[:SHOWN]) + (", ..." if len(missing) > SHOWN else "")
            remedy = "write each next to its task, then go on with `kernelwright resume`"
            raise AnswerPending(f"{self.folder} waits for {len(missing)} answer(s) ({names}); {remedy}")
        return Reply(text=text, model=request.model, provider=self.name, provider_request_id=answer.name)

    def missing(self) -> list[Path]:
        answers = [task.with_name(task.name.removesuffix(TASK) + ANSWER) for task in self.folder.glob(f"*{TASK}")]
        return sorted(path for path in answers if not path.is_file() or not path.stat().st_size)


def provider(options: FilesOptions, run: RunLog) -> Provider:
    return FilesProvider(Path(options.folder) if options.folder else run.folder / TASKS)
