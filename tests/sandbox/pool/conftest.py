import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.problems import PROBLEM, WRONG

ROOT = Path(__file__).parents[3]
COUNT = 8


@pytest.fixture
def folders(tmp_path):
    """One problem and eight wrong candidates, which are judged soon."""
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks" / "cumsum.py").write_text(PROBLEM)
    (tmp_path / "candidates" / "cumsum").mkdir(parents=True)
    for number in range(COUNT):
        (tmp_path / "candidates" / "cumsum" / f"{number}.py").write_text(f"{WRONG}\n# {number}\n")
    return tmp_path


@pytest.fixture
def start(folders):
    """Starts `kernelwright` in the folder; whatever still runs at the end is killed with its group."""
    started = []

    def begin(*words, **environment):
        process = subprocess.Popen(
            [sys.executable, "-m", "kernelwright", *map(str, words)], text=True, cwd=folders,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=os.environ | {"PYTHONPATH": str(ROOT)} | environment,
        )  # fmt: skip
        started.append(process)
        return process

    yield begin
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()
