import os
import subprocess
import sys

import pytest

from tests.support.problems import PROBLEM, RIGHT, WRONG


@pytest.fixture
def kernelwright(tmp_path):
    """Runs the command line in an empty folder; returns the finished process."""

    def call(*words, **environment):
        clean = {name: value for name, value in os.environ.items() if not name.startswith("OPENAI_")}
        return subprocess.run(
            [sys.executable, "-m", "kernelwright", *map(str, words)],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env=clean | environment,
            timeout=300,
            check=False,
        )

    return call


@pytest.fixture
def files(tmp_path):
    """A problem, a right candidate and a wrong one, as files in the folder that commands run in."""
    for name, text in (("problem.py", PROBLEM), ("right.py", RIGHT), ("wrong.py", WRONG)):
        (tmp_path / name).write_text(text)
    return tmp_path
