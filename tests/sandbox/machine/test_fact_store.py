import pytest

from kernelwright.sandbox.storage import Store, is_there
from tests.support.processes import ordinary_user


@pytest.fixture
def closed(tmp_path):
    """A cache that holds a fact, and is closed to everybody."""
    Store("baselines", tmp_path / "cache").put({"name": "a"}, 1)
    (tmp_path / "cache").chmod(0)
    yield tmp_path / "cache"
    (tmp_path / "cache").chmod(0o700)


def test_all_that_is_kept_is_given_back_by_key(tmp_path):
    store = Store("baselines", tmp_path)
    for name in "ba":
        store.put({"name": name}, name)
    (tmp_path / "baselines" / "other.json").write_text('{"key": {"name": "a"}, "value": "under another name"}')
    (tmp_path / "baselines" / ".half.json").write_text("{")
    assert sorted(value for _, value in store.items()) == ["a", "b"]


def test_a_cache_that_is_closed_to_this_user_counts_as_empty_and_facts_last_as_long_as_the_process(closed):
    store = Store("baselines", closed)
    with ordinary_user():
        assert not is_there(closed / "baselines")
        assert store.items() == [] and store.get({"name": "a"}) is None
        store.put({"name": "a"}, 2)
        assert store.get({"name": "a"}) == 2
    assert not is_there(closed / "nothing")
