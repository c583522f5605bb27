"""The first code of the supervisor's process: enters the control groups, and meanwhile imports the supervisor.

To enter one can take ten milliseconds of waiting in the kernel, as much as all of Python's start.
"""

import _thread
import os


def main(arguments: list[str]) -> None:
    """Start with `GROUPS LIFELINE STATUS PLAN COMMAND...`; the rest is described in `kernelwright_child.supervisor`.

    GROUPS are descriptors of `cgroup.procs` files, numbers divided by commas, which a thread writes to.
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
