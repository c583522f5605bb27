"""The process of a worker on this machine: a judge, which answers JSON lines.

`python -m kernelwright.sandbox.pool.worker THREADS SETTINGS [stays]` ends when its input does, so also when the asking
process is killed, and ends every child first. Should it be killed itself, the children's supervisors end them.
"""

import contextlib
import os
import signal
import sys
from typing import TYPE_CHECKING, Any

from kernelwright.sandbox.jail.zygote import frozen_imports, prepare_judge
from kernelwright.sandbox.logs import show_logs_as_asked
from kernelwright.sandbox.pool.executor import Answer, JobError, Question
from kernelwright.sandbox.pool.lines import LineServer, answers_only
from kernelwright.sandbox.verdict.settings import JudgeSettings
from kernelwright.sandbox.workfolder import close_all
from kernelwright_child import driver, supervisor

if TYPE_CHECKING:
    from kernelwright.sandbox.pool.judges import Judges

STOPPING_S = 10.0


def reply_of(judges: "Judges", message: dict[str, Any]) -> dict[str, Any]:
    """Reply to a line. A question that cannot be answered gets an answer too: somebody waits for each."""
    if "release" in message:
        judges.release(message["release"])
        return {}
    try:
        answer = judges.answer(Question.model_validate(message["question"]))
    except Exception as error:
        why = f"the question could not be answered ({type(error).__name__}); please report it"
        answer = Answer(error=JobError(message=why))
    return {"answer": answer.model_dump(mode="json", exclude_none=True)}


def end_children() -> None:
    for pid in supervisor.descendants(os.getpid()):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def main() -> None:
    threads, settings = int(sys.argv[1]), JudgeSettings.model_validate_json(sys.argv[2])
    out = answers_only()
    show_logs_as_asked()
    if sys.argv[3:] == ["stays"]:
        os.sched_setaffinity(0, settings.cores)
    prepare_judge(settings.threads)
    if settings.gpu:
        driver.begin_context(settings.ordinal)
    with frozen_imports():
        from kernelwright.sandbox.pool.judges import Judges  # torch comes with it

    judges = Judges(settings)
    server = LineServer(lambda message: reply_of(judges, message), threads, out)
    server.run()
    judges.stop()
    if server.stop(STOPPING_S, end_children):
        judges.close()
    end_children()
    close_all()  # what a thread that hangs, or is late on a busy machine, would have removed
    os._exit(0)  # a thread that hangs must not keep us; the supervisors end the children once this process is gone


if __name__ == "__main__":
    main()
