import pytest

from tests.hostile.cheats.conftest import judges
from tests.hostile.cheats.problems import CORPUS


@pytest.fixture(scope="session")
def judge_of():
    """Patient judges: an honest candidate may compile in its first call, and the machine may be busy."""
    with judges(CORPUS.model_copy(update={"call_timeout_s": 60})) as judge:
        yield judge
