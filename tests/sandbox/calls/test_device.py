"""Who has a device: one thread, with the guests that it waits for. The device itself is left out."""

import secrets
import threading

import pytest

from kernelwright.sandbox.calls.gpu_device import CudaDevice
from kernelwright.sandbox.locks import device_path
from kernelwright.sandbox.verdict.errors import MachineError

PATIENCE_S = 60


class Held(CudaDevice):
    """One whose context needs no driver."""

    def __init__(self):
        self.uuid = f"GPU-test-{secrets.token_hex(4)}"
        self._wait_s, self._holds, self._lock = PATIENCE_S, 0, None
        self._threads, self._guests, self._calibrated = threading.RLock(), set(), set()

    def make_current(self):
        """Nothing is current."""


@pytest.fixture
def device():
    found = Held()
    yield found
    device_path(found.uuid).unlink(missing_ok=True)


def in_a_thread(work):
    """What `work` comes to in another thread, or its error."""
    found = []

    def run():
        try:
            found.append(work())
        except MachineError as error:
            found.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
    return found[0]


def held_by(device, stopped=lambda: True):
    with device.hold(stopped):
        return "held"


def test_a_guest_of_the_one_that_holds_it_has_it_too(device):
    def as_guest():
        with device.as_guest():
            return held_by(device)

    with device.hold():
        assert in_a_thread(as_guest) == "held"
        assert device._holds == 1


def test_nobody_else_has_it_meanwhile_nor_a_guest_that_has_left(device):
    def after_a_visit():
        with device.as_guest():
            pass
        return held_by(device)

    with device.hold():
        for work in (lambda: held_by(device), after_a_visit):
            assert "stopped before its turn" in str(in_a_thread(work))
    assert in_a_thread(lambda: held_by(device)) == "held"


def test_what_an_idle_device_takes_is_learned_anew_by_whoever_holds_it_next(device):
    with device.hold():
        device._calibrated.add(4096)
        with device.hold():
            assert device._calibrated == {4096}
    with device.hold():
        assert device._calibrated == set()
