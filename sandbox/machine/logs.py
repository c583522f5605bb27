"""Logs, told on standard error where somebody asks for them. Each room of the sandbox logs under its own name."""

import logging
import os
import sys

from kernelwright.sandbox.machine.escaping import escaped

OURS = "kernelwright"
"""The logger above all of ours; without `tell_logs` it is silent, but for what a program has set up by itself."""
VARIABLE = "KERNELWRIGHT_LOG"
"""The environment variable that says a level to the processes of ours that judge: INFO or DEBUG."""
FORMAT = "%(asctime)s %(levelname)s %(process)d %(name)s: %(message)s"


class StandardError(logging.Handler):
    """Lines on what is standard error at that time: a live table takes its place, and is not torn by them."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print one line. It may quote what a candidate has said, so it is made fit for a terminal."""
        print(escaped(self.format(record)), file=sys.stderr, flush=True)


def tell_logs(level: str) -> None:
    """Tell what is logged at this level and above, here and in the processes of ours that are started from now on."""
    ours = logging.getLogger(OURS)
    if not any(isinstance(handler, StandardError) for handler in ours.handlers):
        handler = StandardError()
        handler.setFormatter(logging.Formatter(FORMAT))
        ours.addHandler(handler)
    ours.setLevel(level)
    os.environ[VARIABLE] = level


def tell_logs_as_asked() -> None:
    """In a process that another one of ours has started: tell what that one tells. A level that is none is ignored."""
    level = os.environ.get(VARIABLE, "")
    if level in logging.getLevelNamesMapping():
        tell_logs(level)
