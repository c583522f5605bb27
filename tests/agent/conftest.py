import pytest

from tests.support.search import new_log


@pytest.fixture
def log(tmp_path):
    with new_log(tmp_path / "run") as log:
        yield log
