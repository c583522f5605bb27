"""What no child is shown, though it lies in a folder that it needs."""

from kernelwright.sandbox.jail.bubblewrap import hidden_paths


def test_accepted_jobs_are_hidden_where_the_users_state_lies_in_a_folder_of_tools(tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    jobs = tmp_path / "state" / "kernelwright"
    assert str(jobs) not in hidden_paths()
    jobs.mkdir(parents=True)
    assert str(jobs) in hidden_paths()
