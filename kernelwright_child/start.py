"""The first code of the supervisor's process. It enters the control groups while it imports the supervisor.

Entering one can take ten milliseconds in the kernel, as long as Python's start.
"""

import _thread
import os


def main(arguments: list[str]) -> None:
    """Run `GROUPS LIFELINE STATUS PLAN COMMAND...`; `kernelwright_child.supervisor` describes all but GROUPS.

    GROUPS are descriptors of `cgroup.procs` files, separated by commas. A thread writes to them.
    """
    fds = [int(number) for number in arguments[0].split(",") if number]
    errors: list[OSError] = []
    done = _thread.allocate_lock()

    def enter() -> None:
        try:
            for fd in fds:
                os.write(fd, b"0")  # the process that writes
                os.close(fd)
        except OSError as error:
            errors.append(error)
        finally:
            done.release()

    def wait() -> None:
        done.acquire()
        if errors:
            raise errors[0]

    if fds:
        done.acquire()
        _thread.start_new_thread(enter, ())
    from kernelwright_child import supervisor

    supervisor.main(arguments[1:], wait)
