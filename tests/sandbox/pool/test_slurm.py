"""The SLURM recipe as it stands, with the variables that SLURM sets and without SLURM."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.sandbox.pool.conftest import COUNT, ROOT

SCRIPTS = ROOT / "docs" / "slurm"
SRUN = """#!/bin/sh
while [ "${1#--}" != "$1" ]; do shift; done
exec "$@"
"""


@pytest.fixture
def begin(folders, tmp_path):
    """Starts a script with SLURM's variables; `kernelwright` is the one under test."""
    programs = tmp_path / "bin"
    programs.mkdir()
    command = programs / "kernelwright"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m kernelwright "$@"\n')
    command.chmod(0o755)

    # One node, whose steps start at once.
    for name, text in (("srun", SRUN), ("scontrol", "#!/bin/sh\necho localhost\n")):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    path = os.pathsep.join([str(programs), str(Path(sys.executable).parent), os.environ["PATH"]])

    def begin(script, *words, **variables):
        environment = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_")}
        environment |= {"PATH": path, "PYTHONPATH": str(ROOT)} | variables
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        return subprocess.Popen(["bash", str(SCRIPTS / script), *words], cwd=folders, env=environment, **pipes)

    return begin


@pytest.fixture
def submit(begin):
    def run(*words, **variables):
        process = begin(*words, **variables)
        out, told = process.communicate(timeout=280)
        return subprocess.CompletedProcess(words, process.returncode, out, told)

    return run


def array(task, last=2):
    told = {"ID": task, "MIN": 1, "MAX": last, "STEP": 1}
    return {f"SLURM_ARRAY_TASK_{name}": str(value) for name, value in told.items()}


@pytest.mark.slow
@pytest.mark.long
def test_an_array_judges_every_file_once_and_the_merge_tells_them_all(submit):
    words = ("score-array.sh", "tasks", "candidates", "out", "--json", "--threads", "1")
    shards = [submit(*words, **array(task)) for task in (1, 2)]
    assert [done.returncode for done in shards] == [0, 0], shards
    told = [[json.loads(line)["candidate"] for line in done.stdout.splitlines()] for done in shards]
    assert len(told[0]) + len(told[1]) == COUNT
    assert not set(told[0]) & set(told[1])
    merged = submit("score-merge.sh", "tasks", "candidates", "out", "--json")
    assert merged.returncode == 0, merged.stderr
    assert {json.loads(line)["candidate"] for line in merged.stdout.splitlines()} == set(told[0]) | set(told[1])


@pytest.mark.slow
@pytest.mark.long
def test_a_task_whose_time_is_over_keeps_its_verdicts_and_goes_on_when_it_is_submitted_again(begin, submit):
    words = ("score-array.sh", "tasks", "candidates", "out", "--json", "--threads", "1")
    task = begin(*words, **array(1, last=1))
    assert task.stdout.readline()
    task.terminate()
    rest, _ = task.communicate(timeout=60)
    assert task.returncode != 0
    assert 1 + len(rest.splitlines()) < COUNT
    again = submit(*words, **array(1, last=1))
    assert again.returncode == 0
    assert len(again.stdout.splitlines()) == COUNT
    assert again.stderr.count("failed at") < COUNT


@pytest.mark.slow
@pytest.mark.long
def test_the_merge_says_which_files_a_missing_shard_leaves_without_a_verdict(submit):
    done = submit("score-array.sh", "tasks", "candidates", "out", "--json", "--threads", "1", **array(1))
    judged = len(done.stdout.splitlines())
    merged = submit("score-merge.sh", "tasks", "candidates", "out", "--json")
    lines = [json.loads(line) for line in merged.stdout.splitlines()]
    left = [line for line in lines if line["outcome"] == "not_judged"]
    assert merged.returncode == 1
    assert (len(lines), len(left)) == (COUNT, COUNT - judged)
    assert "on record" in left[0]["reason"]


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed; pip install 'kernelwright[ray]'")
def test_a_batch_is_judged_on_a_cluster_inside_one_allocation_and_nothing_of_it_is_left(submit, tmp_path):
    job = str(10**6 + os.getpid())
    allocation = {
        "SLURM_JOB_ID": job,
        "SLURM_JOB_NODELIST": "localhost",
        "SLURM_CPUS_PER_TASK": "2",
        "KERNELWRIGHT_RAY_FOLDER": str(tmp_path),
    }
    words = ("score", "tasks", "candidates", "--out", "out", "--json", "--threads", "1")
    done = submit("ray-allocation.sh", *words, **allocation)
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"problem"')]
    assert [line["stage"] for line in lines] == ["check"] * COUNT
    assert not list(tmp_path.glob(".kernelwright-ray-*"))
    assert not Path(f"/tmp/kwray-{job}").exists()


def test_an_array_that_is_not_counted_from_1_and_a_merge_without_shards_are_refused(submit):
    done = submit("score-array.sh", "tasks", "candidates", "out", **array(4) | {"SLURM_ARRAY_TASK_MIN": "4"})
    assert done.returncode == 2
    assert "--array=1-N" in done.stderr
    done = submit("score-merge.sh", "tasks", "candidates", "out")
    assert done.returncode == 2
    assert "there is no shard in out" in done.stderr


@pytest.mark.parametrize("script", sorted(path.name for path in SCRIPTS.glob("*.sh")))
def test_a_script_can_be_read_by_bash(script):
    assert subprocess.run(["bash", "-n", str(Path(SCRIPTS) / script)], check=False).returncode == 0
