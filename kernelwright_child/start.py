"""The first code of the supervisor's process: enters the control groups, and meanwhile imports the supervisor.

To enter one can take ten milliseconds of waiting in the kernel, as much as all of Python's start.
"""

import _thread
import os


class Entering:
    """A thread that writes to the descriptors of `cgroup.procs` files, numbers divided by commas."""

    def __init__(self, groups: str) -> None:
        self._fds = [int(number) for number in groups.split(",") if number]
        self._error: OSError | None = None
        self._done = _thread.allocate_lock()
        if self._fds:
            self._done.acquire()
            _thread.start_new_thread(self._enter, ())

    def _enter(self) -> None:
        try:
            for fd in self._fds:
                os.write(fd, b"0")  # the process that writes
                os.close(fd)
        except OSError as error:
            self._error = error
        finally:
            self._done.release()

    def wait(self) -> None:
        """Wait until the process is in all groups. Raises `OSError` where it could not enter one."""
        self._done.acquire()
        if self._error is not None:
            raise self._error


def main(arguments: list[str]) -> None:
    """Start with `GROUPS LIFELINE STATUS PLAN COMMAND...`; the rest is described in `kernelwright_child.supervisor`."""
    entering = Entering(arguments[0])
    from kernelwright_child import supervisor

    supervisor.main(arguments[1:], entering.wait)
