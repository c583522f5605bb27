"""`-v`, before a command's name or behind it: what is logged, on standard error."""

import functools
import inspect
import logging
import platform
from collections.abc import Callable
from typing import Annotated, Any

import typer

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
