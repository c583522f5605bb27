from functools import partial

import pytest

from tests.support.commands import run_with
from tests.support.problems import PROBLEM, RIGHT, WRONG


@pytest.fixture
def kernelwright(tmp_path):
    return partial(run_with, tmp_path)


@pytest.fixture
def files(tmp_path):
    """A problem, a right candidate and a wrong one, as files in the folder that commands run in."""
    for name, text in (("problem.py", PROBLEM), ("right.py", RIGHT), ("wrong.py", WRONG)):
        (tmp_path / name).write_text(text)
    return tmp_path
