"""How a command ends: exit codes, and one sentence for what the user or the machine must mend.

0: done; for `judge`, the candidate passed. 1: the candidate failed, or there is nothing to extract. 2: the user's
mistake. 3: the machine can not do it. 130: stopped by Ctrl-C.
"""

import functools
import shutil
import sys
from collections.abc import Callable
from typing import NoReturn, ParamSpec, TypeVar

import typer

DONE, FELL_SHORT, USER_MISTAKE, MACHINE_LACKS, INTERRUPTED = 0, 1, 2, 3, 130

CODES = {
    "kernelwright.problems": {"ProblemError": USER_MISTAKE},
    "kernelwright.problems.texts.libraries": {"LibraryMissing": MACHINE_LACKS},
    "kernelwright.prompts": {"PromptError": USER_MISTAKE},
    "kernelwright.sandbox.verdict.errors": {"MachineError": MACHINE_LACKS, "BrokenProblem": USER_MISTAKE},
    "kernelwright.agent.log.events": {"RunLogError": USER_MISTAKE},
    "kernelwright.agent.steering.budget": {"PriceError": USER_MISTAKE},
    "kernelwright.agent.engine.replaying": {"ReplayDiffers": FELL_SHORT},
    "kernelwright.sandbox.pool.protocol": {"ExecutorError": USER_MISTAKE},
    "kernelwright.sandbox.service.server": {"ServiceError": USER_MISTAKE},
    "kernelwright.sandbox.service.job_store": {"DiskError": MACHINE_LACKS, "StoreError": USER_MISTAKE},
    "kernelwright.evals.boards.leaderboard": {"MetricError": USER_MISTAKE},
    "kernelwright.evals.scores.judgements": {"JudgementsError": USER_MISTAKE},
    "kernelwright.agent.providers.provider": {"AnswerPending": FELL_SHORT, "ProviderError": USER_MISTAKE},
    "kernelwright.programs.apply.guarded": {"NoPlace": USER_MISTAKE},
    "kernelwright.agent.strategies": {"StrategyError": USER_MISTAKE},
}
"""By module, the exit codes of its exceptions: each says in one sentence what is to be mended. The first that fits
counts, so what is derived from another stands before it."""

P = ParamSpec("P")
R = TypeVar("R")


def own_command() -> str:
    """How the user can type this program: by name where it is on the path, else as it was started."""
    if shutil.which("kernelwright"):
        return "kernelwright"
    return f"{sys.executable} -m kernelwright" if sys.argv[0].endswith("__main__.py") else sys.argv[0]


class UserMistake(Exception):
    """Something that the user can mend; the text is one sentence with the remedy."""


def exit_with(code: int, sentence: str) -> NoReturn:
    print(f"kernelwright: {sentence}", file=sys.stderr)
    raise typer.Exit(code)


def with_exit_codes(command: Callable[P, R]) -> Callable[P, R]:
    """Turn errors that have a remedy into their sentence and exit code. Anything else is our bug and stays loud."""

    @functools.wraps(command)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return command(*args, **kwargs)
        except UserMistake as error:
            exit_with(USER_MISTAKE, str(error))
        except KeyboardInterrupt:
            exit_with(INTERRUPTED, "stopped")
        except Exception as error:
            code = _code_of(error)
            if code is None:
                raise
            exit_with(code, str(error))

    return wrapped


def _code_of(error: Exception) -> int | None:
    """The exit code of an error of ours. The packages are looked up only if loaded: a command may need none of them."""
    for module, names in CODES.items():
        loaded = sys.modules.get(module)
        for name, code in names.items():
            kind = getattr(loaded, name, None)
            if kind is not None and isinstance(error, kind):
                return code
    return None
