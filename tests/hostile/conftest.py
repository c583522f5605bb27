"""The settings that the same attacks run on: with and without namespaces, as whoever runs the tests."""

import os
import tempfile
from pathlib import Path

import pytest

from kernelwright.sandbox.jail import bubblewrap
from kernelwright.sandbox.jail import layers as jail
from kernelwright.sandbox.judge.judging import Judge
from kernelwright.sandbox.verdict.settings import JudgeSettings
from kernelwright.sandbox.workfolder import remove
from tests.hostile.attacks import PROBLEM
from tests.hostile.surroundings import Surroundings
from tests.support.efforts import at_asked_effort

TIGHT = at_asked_effort(
    JudgeSettings(
        threads=2,
        warm_up=1,
        min_pairs=4,
        max_pairs=4,
        call_timeout_s=4,
        build_timeout_s=60,
        memory_bytes=2**30,
        processes=128,
        folder_bytes=64 * 2**20,
        file_bytes=32 * 2**20,
    )
)
"""Few pairs and low limits, so that every attack reaches its limit soon."""
SETTINGS = {"namespaces": TIGHT, "alone": TIGHT.model_copy(update={"jail_without": ("namespaces",)})}
ONLY = "KERNELWRIGHT_HOSTILE_SETTING"
"""An environment variable that leaves one of them: what `test_unprivileged.py` gives to the tests that it starts."""


class Place:
    """One setting, a judge that serves all attacks on it, and what is planted around."""

    def __init__(self, how: str, folder) -> None:
        self.namespaces = how == "namespaces"
        self.name = f"{how}, {'root' if os.geteuid() == 0 else 'user'}"
        self.surroundings = Surroundings(folder)
        self.judge = Judge(PROBLEM, SETTINGS[how])

    @property
    def around(self):
        """What candidates are told, once the reference's process lives."""
        return self.surroundings.around(self.namespaces, reference_process(self.judge))


def reference_process(judge: Judge) -> int:
    """The number of the reference's process, started if need be."""
    return judge.reference._session._child.pid


@pytest.fixture(scope="session", params=SETTINGS)
def place(request):
    how = request.param
    if os.environ.get(ONLY, how) != how:
        pytest.skip(f"{ONLY} leaves only {os.environ[ONLY]}")
    if how == "namespaces" and bubblewrap.obstacle():
        pytest.skip(f"no namespaces: {bubblewrap.obstacle()}")
    if how == "alone" and not jail.landlock_abi():
        pytest.skip("this kernel has no landlock")
    # Not below pytest's own folder, which is closed to other users: where root judges, children are other users.
    folder = Path(tempfile.mkdtemp(prefix="hostile-"))
    folder.chmod(0o755)
    place = Place(how, folder)
    before, tempfile.tempdir = tempfile.tempdir, str(place.surroundings.work)
    os.environ["OPENAI_API_KEY"] = "sk-planted"
    try:
        with place.judge:
            place.judge.start()  # what an attack leaves behind is told from what the judge itself has started
            yield place
    finally:
        tempfile.tempdir = before
        del os.environ["OPENAI_API_KEY"]
        place.surroundings.close()
        remove(folder)
