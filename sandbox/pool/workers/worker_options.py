"""`WorkerOptions`: what a worker is started for."""

import os
from typing import Any

from kernelwright.problems.record.base import Record
from kernelwright.sandbox.pool.protocol import Device
from kernelwright.sandbox.pool.workers.devices import own_cores, settings_on
from kernelwright.sandbox.verdict.settings import Settings


class WorkerOptions(Record):
    """The settings, and for a supervisor its device."""

    chosen: dict[str, Any]
    """The settings that were chosen, see `devices.given`; without a device they may say which cores to use."""
    device: Device | None = None
    """None in a build pool, and for a worker that has all that its process sees to itself."""
    alone: bool = True
    """Whether the device is all that its node has of its kind, not one of several or a part."""

    def settings(self) -> Settings:
        """The settings here; without a device all cores of the machine may be used, unless some were chosen."""
        cores = self.device.cores if self.device else tuple(self.chosen.get("cores", ()))
        return settings_on(self.chosen, cores or own_cores())

    def settle(self) -> None:
        """Stay on the device's own cores, with all that is started from here on. For a process that does only this."""
        if self.device is not None and self.device.cores and not self.alone:
            os.sched_setaffinity(0, self.device.cores)
