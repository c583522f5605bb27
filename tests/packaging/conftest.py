"""What the tests of packaging share: each form in which kernelwright comes is built and installed once."""

import tempfile
from pathlib import Path

import pytest

from kernelwright.sandbox.workfolder import remove
from tests.packaging.environments import Environment, copy_checkout, done, folder_of_an_agent

BUILD = "from setuptools.build_meta import build_{kind} as build; print(build({to!r}))"


@pytest.fixture(scope="session")
def place():
    # Not below pytest's own folder: that is closed to the users that children become where root judges.
    folder = Path(tempfile.mkdtemp(prefix="packaging-"))
    folder.chmod(0o755)
    yield folder
    remove(folder)


@pytest.fixture(scope="session")
def checkout(place):
    """A copy of the checkout as git has it."""
    return copy_checkout(place / "checkout")


@pytest.fixture(scope="session")
def sdist(place, checkout):
    return _built("sdist", checkout, place, Environment(place / "building"))


@pytest.fixture(scope="session")
def wheel(place, sdist):
    unpacked = place / "unpacked"
    unpacked.mkdir()
    done("tar", "xzf", sdist, "--strip-components", "1", cwd=unpacked)
    return _built("wheel", unpacked, place, Environment(place / "building-wheel"))


def _built(kind, source, place, environment):
    to = place / kind
    to.mkdir()
    said = environment.run("-c", BUILD.format(kind=kind, to=str(to)), cwd=source)
    return to / said.splitlines()[-1]


@pytest.fixture(scope="session")
def from_wheel(place, wheel):
    return Environment(place / "from-wheel").install(wheel)


@pytest.fixture(scope="session")
def from_folder(place):
    return Environment(place / "from-folder").install(copy_checkout(place / "to-install"))


@pytest.fixture(scope="session")
def editable(place):
    return Environment(place / "editable").install("-e", copy_checkout(place / "to-edit"))


@pytest.fixture(scope="session")
def compat(place):
    """As `make setup` installs it."""
    way = ("--config-settings", "editable_mode=compat")
    return Environment(place / "compat").install(*way, "-e", copy_checkout(place / "to-edit-compat"))


@pytest.fixture(params=["from_wheel", "from_folder", "editable", "compat"])
def environment(request):
    return request.getfixturevalue(request.param)


@pytest.fixture
def elsewhere(tmp_path):
    """A folder with packages named like ours."""
    return folder_of_an_agent(tmp_path / "an agent")
