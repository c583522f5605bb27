import logging

import pytest

from kernelwright.sandbox.service.job_store import JOBS, JobStore, usual_state


@pytest.fixture(autouse=True)
def places(tmp_path, monkeypatch):
    monkeypatch.setenv("KERNELWRIGHT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def put_jobs(folder):
    folder.mkdir(parents=True)
    JobStore(folder / JOBS, keep=1).close()


def test_jobs_lie_in_the_users_state_which_nobody_empties_to_gain_room(tmp_path):
    (tmp_path / "cache" / "service").mkdir(parents=True)  # the socket lies there
    assert usual_state() == tmp_path / "state" / "kernelwright" / "service"


def test_jobs_of_an_earlier_version_stay_where_they_are_and_that_is_told_in_a_line(tmp_path, caplog):
    put_jobs(tmp_path / "cache" / "service")
    with caplog.at_level(logging.WARNING, "kernelwright.sandbox.service"):
        assert usual_state() == tmp_path / "cache" / "service"
    (told,) = caplog.messages
    assert f"the jobs stay in {tmp_path / 'cache' / 'service'}" in told and "\n" not in told


def test_once_there_are_jobs_in_the_users_state_those_count(tmp_path, caplog):
    put_jobs(tmp_path / "cache" / "service")
    put_jobs(tmp_path / "state" / "kernelwright" / "service")
    assert usual_state() == tmp_path / "state" / "kernelwright" / "service"
    assert not caplog.messages
