import gc
import os

from kernelwright.sandbox.jail.zygote import imports_that_stay, rest_between_loops


def test_threads_of_loops_rest_in_a_judge_unless_a_user_chooses_otherwise(monkeypatch):
    monkeypatch.setenv("OMP_WAIT_POLICY", "")
    monkeypatch.delenv("OMP_WAIT_POLICY")
    rest_between_loops()
    assert os.environ["OMP_WAIT_POLICY"] == "passive"
    monkeypatch.setenv("OMP_WAIT_POLICY", "active")
    rest_between_loops()
    assert os.environ["OMP_WAIT_POLICY"] == "active"


def test_the_collector_rests_while_what_stays_is_imported_and_passes_over_it_later():
    before = gc.get_freeze_count()
    with imports_that_stay():
        assert not gc.isenabled()
        kept = [[] for _ in range(1000)]
    assert gc.isenabled()
    assert gc.get_freeze_count() >= before + len(kept)
    gc.unfreeze()
