"""A run that goes on where other cores and devices are than where it began."""

import sys

from kernelwright.sandbox.pool.front.executor_choice import ExecutorChoice
from kernelwright.sandbox.pool.protocol import ExecutorError
from kernelwright.sandbox.pool.workers.devices import own_cores
from kernelwright.sandbox.verdict.memory import child_limit_bytes
from kernelwright.sandbox.verdict.settings import Settings
from kernelwright_child.gpu import driver


def as_far_as_there(choice: ExecutorChoice, settings: Settings) -> tuple[ExecutorChoice, Settings]:
    """The choice and the settings with no more cores, memory and GPUs than this machine has; says so where it changes.

    On a GPU these only say how fast one gets on. What runs on a processor is measured on its cores: where one is
    missing, `ExecutorError` is raised.
    """
    if not choice.is_here:
        return choice, settings
    there = own_cores()
    missing = sorted(set(settings.cores) - set(there))
    if not settings.gpu:
        if missing:
            raise ExecutorError(
                f"the run is measured on {len(settings.cores)} cores and this machine lacks {len(missing)} of them "
                f"(core {missing[0]}); go on where it began, or start a new run here"
            )
        return choice, settings
    devices = choice.devices and min(choice.devices, driver.device_count() or choice.devices)
    if not missing and devices == choice.devices:
        return choice, settings
    cores = there if missing else settings.cores
    memory_bytes = min(settings.memory_bytes, child_limit_bytes())
    limits = {"cores": cores, "threads": min(settings.threads, len(cores)), "memory_bytes": memory_bytes}
    began = f"{_count(len(settings.cores), 'core')} and {_count(choice.devices or 1, 'device')}"
    now = f"{_count(len(cores), 'core')} and {_count(devices or 1, 'device')}"
    print(f"kernelwright: going on with {now}; the run began with {began}", file=sys.stderr, flush=True)
    return choice.model_copy(update={"devices": devices}), settings.model_copy(update=limits)


def _count(number: int, name: str) -> str:
    return f"{number} {name}{'' if number == 1 else 's'}"
