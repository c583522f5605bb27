"""All that commands share: exit codes, `-v` and `--version`, groups of options, files and tables.

Exit codes: 0: done; for `judge`, the candidate passed. 1: the candidate failed, or there is nothing to extract. 2: the
user's mistake. 3: the machine cannot do it. 130: stopped by Ctrl-C. An error of the user or the machine is one sentence
with the remedy.
"""

import copy
import errno
import functools
import inspect
import logging
import platform
import shutil
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, ParamSpec, TextIO, TypeVar, get_args, get_type_hints

import typer
import typer.core

if TYPE_CHECKING:
    from rich.console import Console

DONE, FELL_SHORT, USER_MISTAKE, MACHINE_LACKS, INTERRUPTED = 0, 1, 2, 3, 130

CODES = {
    "ProblemError": USER_MISTAKE,
    "LibraryMissing": MACHINE_LACKS,
    "PromptError": USER_MISTAKE,
    "MachineError": MACHINE_LACKS,
    "BrokenProblem": USER_MISTAKE,
    "RunLogError": USER_MISTAKE,
    "PriceError": USER_MISTAKE,
    "ReplayDiffers": FELL_SHORT,
    "ExecutorError": USER_MISTAKE,
    "ServiceError": USER_MISTAKE,
    "DiskError": MACHINE_LACKS,
    "StoreError": USER_MISTAKE,
    "MetricError": USER_MISTAKE,
    "JudgementsError": USER_MISTAKE,
    "AnswerPending": FELL_SHORT,
    "ProviderError": USER_MISTAKE,
    "NoPlace": USER_MISTAKE,
    "StrategyError": USER_MISTAKE,
}
"""By the name of an exception of ours, its exit code. By name, since a command may need none of their packages."""

P = ParamSpec("P")
R = TypeVar("R")
LOG = logging.getLogger(__name__)
LARGEST_BYTES = 32 * 2**20
LOG_WIDTH = 190
"""Columns of a table where the output is not a terminal."""
VerboseOption = Annotated[
    int,
    typer.Option(
        "-v", "--verbose", count=True, show_default=False, help="Log to standard error what is done and why; -vv: more."
    ),
]


class UserMistake(Exception):
    """Something that the user can mend; the text is one sentence with the remedy."""


def json_option(help: str) -> Any:
    return typer.Option("--json", help=help)


def own_command() -> str:
    """Return the words that start this program: its name where it is on the path, else its own command line."""
    if shutil.which("kernelwright"):
        return "kernelwright"
    return f"{sys.executable} -m kernelwright" if sys.argv[0].endswith("__main__.py") else sys.argv[0]


def note(text: str) -> None:
    print(f"kernelwright: {text}", file=sys.stderr, flush=True)


def exit_with(code: int, sentence: str) -> NoReturn:
    note(sentence)
    raise typer.Exit(code)


def with_exit_codes(command: Callable[P, R]) -> Callable[P, R]:
    """Replace errors that have a remedy by their sentence and exit code. Anything else is our bug and stays loud."""

    @functools.wraps(command)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return command(*args, **kwargs)
        except UserMistake as error:
            exit_with(USER_MISTAKE, str(error))
        except KeyboardInterrupt:
            exit_with(INTERRUPTED, "stopped")
        except Exception as error:
            if isinstance(error, OSError) and error.errno == errno.ENOSPC:
                exit_with(MACHINE_LACKS, "there is no space left to write to; free some and repeat the command")
            for kind in type(error).__mro__:
                if kind.__name__ in CODES and kind.__module__.startswith("kernelwright."):
                    exit_with(CODES[kind.__name__], str(error))
            raise

    return wrapped


def _write_panels(formatter: Any, panels: dict[str, list[tuple[str, str]]]) -> None:
    for panel, listed in panels.items():
        with formatter.section(panel):
            formatter.write_dl(listed)


class PanelCommand(typer.core.TyperCommand):
    """A command whose help lists its options in panels."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        panels: dict[str, list[tuple[str, str]]] = defaultdict(list)
        for one in self.get_params(ctx):
            if record := one.get_help_record(ctx):
                is_argument = one.param_type_name == "argument"
                panels["Arguments" if is_argument else getattr(one, "rich_help_panel", None) or "Options"].append(
                    record
                )
        _write_panels(formatter, panels)


class PanelGroup(typer.core.TyperGroup):
    """A group whose help lists its commands in panels."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        panels: dict[str, list[tuple[str, str]]] = defaultdict(list)
        width = formatter.width - 6 - max(map(len, self.commands))
        for name, command in self.commands.items():
            panels[getattr(command, "rich_help_panel", "")].append((name, command.get_short_help_str(width)))
        _write_panels(formatter, panels)


def with_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command `-v`, and an option for each field of its groups, in a panel of its own.

    A group is a parameter whose annotation is a NamedTuple of options and whose default is one of these. The first
    words of its docstring, up to a colon, are the heading of the panel.
    """
    own, groups = inspect.signature(command), {}
    parameters: list[inspect.Parameter] = []
    for name, one in own.parameters.items():
        if hasattr(one.annotation, "_fields"):
            groups[name] = one.annotation
            hints = get_type_hints(one.annotation, include_extras=True)
            panel = (one.annotation.__doc__ or "").partition(":")[0]
            listed = [
                (field, _in_panel(hints[field], panel), getattr(one.default, field)) for field in one.annotation._fields
            ]
        else:
            listed = [(name, one.annotation, one.default)]
        parameters += [
            inspect.Parameter(field, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
            for field, annotation, default in listed
        ]
    parameters.append(inspect.Parameter("verbose", inspect.Parameter.KEYWORD_ONLY, default=0, annotation=VerboseOption))

    @functools.wraps(command)
    def wrapped(*, verbose: int = 0, **given: Any) -> Any:
        show_logs(verbose)
        for name, kind in groups.items():
            given[name] = kind(**{field: given.pop(field) for field in kind._fields})
        return command(**given)

    # Typer reads the options of a command from these.
    vars(wrapped)["__signature__"] = own.replace(parameters=parameters)
    wrapped.__annotations__ = {one.name: one.annotation for one in parameters}
    return wrapped


def _in_panel(annotation: Any, panel: str) -> Any:
    kind, option = get_args(annotation)
    option = copy.copy(option)
    option.rich_help_panel = panel
    return Annotated[kind, option]


def read_text(path: str, what: str) -> str:
    """Read a file, or standard input for `-`. `UserMistake` where that is not possible."""
    if path == "-":
        with opened(path, what) as file:
            return file.read()
    with _readable(path, what):
        if Path(path).stat().st_size > LARGEST_BYTES:
            raise UserMistake(f"{what} {path} is larger than {LARGEST_BYTES // 2**20} MiB; give the right file")
        return Path(path).read_text(encoding="utf-8-sig", errors="replace")


@contextmanager
def opened(path: str, what: str) -> Iterator[TextIO]:
    """Open a file, or standard input for `-`, to read it line by line; only a newline ends a line."""
    if path == "-":
        yield open(sys.stdin.fileno(), encoding="utf-8-sig", errors="replace", closefd=False)  # noqa: SIM115
        return
    with _readable(path, what):
        file = open(path, encoding="utf-8", errors="replace", newline="\n")  # noqa: SIM115 - closed below
    with file:
        yield file


@contextmanager
def _readable(path: str, what: str) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise UserMistake(f"there is no {what} {path}; check the path") from None
    except OSError as error:
        raise UserMistake(f"{what} {path} cannot be read ({error.strerror}); check the path and its rights") from None


@contextmanager
def writing(out: Path) -> Iterator[None]:
    """Guard a block that writes below `out`: `UserMistake` with the remedy where the disk refuses, or at a device."""
    if out.exists() and not (out.is_file() or out.is_dir()):
        raise UserMistake(f"{out} is no regular file, and would be replaced; choose another place")
    try:
        yield
    except OSError as error:
        raise UserMistake(f"cannot write {out} ({error.strerror}); choose another place") from error


def table_console(highlight: bool = True) -> "Console":
    from rich.console import Console

    console = Console(highlight=highlight)
    return console if console.is_terminal else Console(highlight=highlight, width=LOG_WIDTH)


def fit_for(stream: TextIO, source: str) -> str:
    """Prepare a candidate's source for a stream: as it is for a file, escaped for a terminal."""
    from kernelwright.sandbox.logs import escaped

    return escaped(source) if stream.isatty() else source


def show_logs(count: int) -> None:
    """Log INFO with `-v` and DEBUG with `-vv`; nothing without either."""
    if not count:
        return
    from kernelwright.evals.version import version_words
    from kernelwright.sandbox import logs

    logs.show_logs("INFO" if count == 1 else "DEBUG")
    LOG.info("%s, Python %s on %s", version_words(), platform.python_version(), platform.platform())


def _version(asked: bool) -> None:
    if not asked:
        return
    from kernelwright.evals.version import version_words

    print(version_words())
    raise typer.Exit


def before_any_command(
    _: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print version and commit, and end.")
    ] = False,
    verbose: VerboseOption = 0,
) -> None:
    show_logs(verbose)
