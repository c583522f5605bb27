"""What every command shares: how it ends, reading and writing named files, the width of tables, `-v` and `--version`.

Exit codes: 0: done; for `judge`, the candidate passed. 1: the candidate failed, or there is nothing to extract. 2: the
user's mistake. 3: the machine can not do it. 130: stopped by Ctrl-C. An error of the user or the machine is told in one
sentence with the remedy.
"""

import functools
import inspect
import logging
import platform
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, ParamSpec, TextIO, TypeVar

import typer

if TYPE_CHECKING:
    from rich.console import Console

DONE, FELL_SHORT, USER_MISTAKE, MACHINE_LACKS, INTERRUPTED = 0, 1, 2, 3, 130

CODES = {
    "kernelwright.problems": {"ProblemError": USER_MISTAKE},
    "kernelwright.problems.texts.rewriting": {"LibraryMissing": MACHINE_LACKS},
    "kernelwright.prompts": {"PromptError": USER_MISTAKE},
    "kernelwright.sandbox.verdict.errors": {"MachineError": MACHINE_LACKS, "BrokenProblem": USER_MISTAKE},
    "kernelwright.agent.log.events": {"RunLogError": USER_MISTAKE},
    "kernelwright.agent.steering.budget": {"PriceError": USER_MISTAKE},
    "kernelwright.agent.engine.replaying": {"ReplayDiffers": FELL_SHORT},
    "kernelwright.sandbox.pool.executor": {"ExecutorError": USER_MISTAKE},
    "kernelwright.sandbox.service.server": {"ServiceError": USER_MISTAKE},
    "kernelwright.sandbox.service.store": {"DiskError": MACHINE_LACKS, "StoreError": USER_MISTAKE},
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


LARGEST_BYTES = 32 * 2**20


def read_text(path: str, what: str) -> str:
    """The text of a file, or of standard input for `-`. `UserMistake` with the remedy where that can not be."""
    if path == "-":
        return sys.stdin.read()
    try:
        if Path(path).stat().st_size > LARGEST_BYTES:
            raise UserMistake(f"{what} {path} is larger than {LARGEST_BYTES // 2**20} MiB; give the right file")
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        raise UserMistake(f"there is no {what} {path}; check the path") from None
    except OSError as error:
        raise UserMistake(f"{what} {path} can not be read ({error.strerror}); check the path and its rights") from None


@contextmanager
def writing(out: Path) -> Iterator[None]:
    """A block that writes below `out`: `UserMistake` with the remedy where the disk refuses."""
    try:
        yield
    except OSError as error:
        raise UserMistake(f"cannot write {out} ({error.strerror}); choose another place") from error


@contextmanager
def opened(path: str, what: str) -> Iterator[TextIO]:
    """A file to be read line by line, however large, or standard input for `-`; only a newline ends a line."""
    if path == "-":
        yield sys.stdin
        return
    try:
        file = open(path, encoding="utf-8", errors="replace", newline="\n")  # noqa: SIM115 - closed below
    except FileNotFoundError:
        raise UserMistake(f"there is no {what} {path}; check the path") from None
    except OSError as error:
        raise UserMistake(f"{what} {path} can not be read ({error.strerror}); check the path and its rights") from None
    with file:
        yield file


LOG_WIDTH = 190
"""Columns of a table where the output is no terminal."""


def table_console(highlight: bool = True) -> "Console":
    from rich.console import Console

    console = Console(highlight=highlight)
    return console if console.is_terminal else Console(highlight=highlight, width=LOG_WIDTH)


def fit_for(stream: TextIO, source: str) -> str:
    """A candidate's source for a stream: a file gets it as it is, a terminal would take some of it for commands."""
    from kernelwright.sandbox.machine.logs import escaped

    return escaped(source) if stream.isatty() else source


LOG = logging.getLogger(__name__)
LEVELS = ("INFO", "DEBUG")
VerboseOption = Annotated[
    int,
    typer.Option(
        "-v", "--verbose", count=True, show_default=False, help="Log to standard error what is done and why; -vv: more."
    ),
]


def tell_logs_for(count: int) -> None:
    """`-v` tells INFO, `-vv` DEBUG; without either nothing is told."""
    if not count:
        return
    from kernelwright.evals.runs.version import version_words
    from kernelwright.sandbox.machine.logs import tell_logs

    tell_logs(LEVELS[min(count, len(LEVELS)) - 1])
    LOG.info("%s, Python %s on %s", version_words(), platform.python_version(), platform.platform())


def with_verbosity(command: Callable[..., Any]) -> Callable[..., Any]:
    """The command with `-v` as one more option."""

    @functools.wraps(command)
    def wrapped(*args: Any, verbose: int = 0, **kwargs: Any) -> Any:
        tell_logs_for(verbose)
        return command(*args, **kwargs)

    own = inspect.signature(command)
    option = inspect.Parameter("verbose", inspect.Parameter.KEYWORD_ONLY, default=0, annotation=VerboseOption)
    # What typer reads the options of a command from.
    vars(wrapped)["__signature__"] = own.replace(parameters=[*own.parameters.values(), option])
    wrapped.__annotations__ = command.__annotations__ | {"verbose": VerboseOption}
    return wrapped


def _tell(asked: bool) -> None:
    if not asked:
        return
    from kernelwright.evals.runs.version import version_words

    print(version_words())
    raise typer.Exit


def version(
    _: Annotated[
        bool, typer.Option("--version", callback=_tell, is_eager=True, help="Print version and commit, and end.")
    ] = False,
    verbose: VerboseOption = 0,
) -> None:
    """What stands before any command."""
    tell_logs_for(verbose)
