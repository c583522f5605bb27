import json

import pytest

from kernelwright.commands.run import search_options
from kernelwright.terminal import UserMistake
from tests.support.search import new_log, searched


def test_a_run_replays_to_its_own_digest(tmp_path, kernelwright):
    with new_log(tmp_path / "run") as log:
        searched(log)
        digest = log.digest()
    done = kernelwright("replay", str(tmp_path / "run"), "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["digest"] == digest


def test_settings_are_read_as_numbers_lists_and_parts_of_a_budget():
    found = search_options(["patience=7", "models=a,b", "budget.usd=2.5", "lockstep=true"])
    assert found == {"patience": 7, "models": ["a", "b"], "budget": {"usd": 2.5}, "lockstep": True}


@pytest.mark.parametrize("setting", ["patiense=7", "patience", "budget.euro=1", "=3"])
def test_a_setting_that_does_not_exist_is_told(setting):
    with pytest.raises(UserMistake, match="no search setting"):
        search_options([setting])
