import tarfile
import zipfile

import pytest

from tests.packaging.environments import COLLIDING, tracked

pytestmark = [pytest.mark.slow, pytest.mark.long]

OURS = {"kernelwright", "kernelwright_child"}
ONLY_HERE = ("README.md", "ruff.toml")
"""What the folders have for those who work on them."""


def shipped():
    """All files of the packages, by the names under which they are installed."""
    homes = {name: f"kernelwright/{name}" for name in COLLIDING} | {name: name for name in OURS}
    parts = [name.partition("/") for name in tracked()]
    found = {f"{homes[top]}/{rest}" for top, _, rest in parts if top in homes and not rest.endswith(ONLY_HERE)}
    return found - {f"kernelwright/{name}" for name in COLLIDING}


def test_the_archive_of_the_sources_holds_every_file_of_the_packages_and_no_link(sdist):
    with tarfile.open(sdist) as archive:
        members = archive.getmembers()
    names = {member.name.partition("/")[2] for member in members if member.isfile()}
    assert shipped() - names == set()
    assert not [member.name for member in members if member.issym() or member.islnk()]
    assert not [name for name in names if name.partition("/")[0] in (*COLLIDING, "tests", "bench")]


def test_the_wheel_holds_exactly_the_files_of_the_packages_and_serves_every_python_and_machine(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert names == shipped()
    assert wheel.name.endswith("-py3-none-any.whl")


def test_pip_puts_one_package_and_the_jail_s_own_into_site_packages(from_folder, from_wheel):
    for environment in (from_folder, from_wheel):
        (about,) = environment.installed() - OURS
        assert about.startswith("kernelwright-") and about.endswith(".dist-info")
        assert {name for name in COLLIDING if (environment.site / "kernelwright" / name).is_symlink()} == set()


def test_what_a_command_line_says_of_its_version_is_what_was_installed(from_wheel, wheel, elsewhere):
    (about,) = from_wheel.installed() - OURS
    assert from_wheel.run("-m", "kernelwright", "--version", cwd=elsewhere).split()[1] == about.split("-")[1][:-5]
