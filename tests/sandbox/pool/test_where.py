"""Where to judge: what a run remembers of it, and how it goes on where other devices are."""

import pytest

from kernelwright.sandbox.machine import child_limit_bytes, processor_name
from kernelwright.sandbox.pool.executor import ExecutorError, own_cores
from kernelwright.sandbox.pool.judge_pool import Where, as_far_as_there, executor_for, settled
from kernelwright.sandbox.verdict.settings import Settings
from kernelwright_child import driver

BEYOND = 4096
"""No machine of ours has so many cores."""
MANY = tuple(range(BEYOND))


@pytest.mark.parametrize(
    ("choice", "settings"),
    [
        (Where(devices=1), Settings()),
        (Where(devices=BEYOND), Settings()),
        (Where(server="unix:/nowhere"), Settings(cores=MANY)),
    ],
    ids=["all is there", "parts of a processor, which GPUs do not count", "a service, whose own affair it is"],
)
def test_what_has_not_to_change_stays_and_nothing_is_said(capsys, choice, settings):
    assert as_far_as_there(choice, settings) == (choice, settings)
    assert capsys.readouterr().err == ""


def test_on_a_gpu_cores_and_memory_of_another_machine_become_those_of_this_one(capsys):
    began = Settings(device="cuda", cores=MANY, threads=BEYOND, memory_bytes=2**60)
    choice, settings = as_far_as_there(Where(devices=BEYOND), began)
    assert settings.cores == own_cores() and settings.threads == len(own_cores())
    assert settings.memory_bytes == child_limit_bytes()
    assert choice.devices == (driver.device_count() or BEYOND)
    said = capsys.readouterr().err
    assert f"going on with {len(own_cores())} core" in said and f"the run began with {BEYOND} cores" in said


def test_what_is_measured_on_other_cores_is_not_measured_on_these():
    with pytest.raises(ExecutorError, match=r"lacks \d+ .*new run"):
        as_far_as_there(Where(), Settings(cores=MANY))


def test_a_run_remembers_the_kind_of_device_that_it_began_on_unless_it_judges_in_its_own_process():
    assert settled(Where(devices=1), Settings()).kind == processor_name()
    assert settled(Where(), Settings()) == Where()


def test_an_address_without_ray_and_more_devices_than_cores_are_mistakes():
    with pytest.raises(ExecutorError, match="--executor ray"):
        executor_for(Where(address="head:6379"), Settings())
    with pytest.raises(ExecutorError, match="100000 devices"):
        settled(Where(devices=100_000), Settings())
