import re
from importlib.metadata import PackageNotFoundError
from pathlib import Path

from kernelwright.evals import version

ROOT = Path(__file__).parents[2]


def absent(name):
    raise PackageNotFoundError(name)


def test_packages_that_are_not_installed_have_the_version_of_their_checkout(monkeypatch):
    monkeypatch.setattr(version, "version", absent)
    (said,) = re.findall(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert version.own_version() == said


def test_without_a_checkout_nobody_knows(monkeypatch, tmp_path):
    monkeypatch.setattr(version, "version", absent)
    monkeypatch.setattr(version, "ROOT", tmp_path)
    assert (version.own_version(), version.commit()) == ("unknown", None)
