"""A driver that is killed with all its power, and the same command again."""

import json
import sqlite3
import time
from contextlib import closing
from importlib.util import find_spec

import pytest

from kernelwright_child import supervisor
from tests.sandbox.pool.conftest import COUNT

pytestmark = [pytest.mark.slow, pytest.mark.long]
SCORE = ("score", "tasks", "candidates", "--json", "--threads", "1")


def records(folder):
    """The verdicts on record: when each was reached, by its candidate."""
    with closing(sqlite3.connect(f"file:{folder}/scores/scores.db?mode=ro", uri=True)) as source:
        rows = source.execute("SELECT record FROM judgements").fetchall()
    found = [json.loads(row[0]) for row in rows]
    return {one["candidate"]: one["time"] for one in found}


def first_lines(process, count):
    return [process.stdout.readline() for _ in range(count)]


@pytest.mark.parametrize("executor", [("--devices", "2"), ("--executor", "ray")], ids=["local", "ray"])
def test_what_was_judged_before_the_driver_was_killed_is_not_judged_again(start, folders, executor):
    if "ray" in executor and find_spec("ray") is None:
        pytest.skip("Ray is not installed; pip install 'kernelwright[ray]'")
    driver = start(*SCORE, *executor)
    assert all(first_lines(driver, 2))
    driver.kill()
    driver.communicate()
    before = records(folders)
    assert 2 <= len(before) < COUNT
    again = start(*SCORE, *executor)
    out, told = again.communicate(timeout=280)
    assert again.returncode == 0, told
    after = records(folders)
    assert len(out.splitlines()) == len(after) == COUNT
    assert {name: after[name] for name in before} == before


def test_no_worker_outlives_a_driver_that_is_killed(start, folders):
    driver = start(*SCORE, "--devices", "2")
    assert all(first_lines(driver, 1))
    children = descendants(driver.pid)
    assert children
    driver.kill()
    driver.communicate()
    end = time.monotonic() + 30
    while alive(children) and time.monotonic() < end:
        time.sleep(0.1)
    assert not alive(children)


def descendants(pid):
    return {child: started(child) for child in supervisor.descendants(pid)}


def started(pid):
    """When a process was started, in the kernel's ticks; None where there is none. Numbers are used again."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] == "Z" else fields[19]


def alive(children):
    return [pid for pid, since in children.items() if since is not None and started(pid) == since]
