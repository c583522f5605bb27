"""What a program that judges does to its own process."""

import os

from kernelwright.sandbox.jail.own_process import rest_between_loops


def test_threads_of_loops_rest_in_a_judge(monkeypatch):
    monkeypatch.setenv("OMP_WAIT_POLICY", "")
    monkeypatch.delenv("OMP_WAIT_POLICY")
    rest_between_loops()
    assert os.environ["OMP_WAIT_POLICY"] == "passive"


def test_a_user_may_choose_otherwise(monkeypatch):
    monkeypatch.setenv("OMP_WAIT_POLICY", "active")
    rest_between_loops()
    assert os.environ["OMP_WAIT_POLICY"] == "active"
