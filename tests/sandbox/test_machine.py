"""The packages of further languages: what is said without one, what a child is told, what a build is kept under."""

import pytest

from kernelwright.problems.languages import TARGETS
from kernelwright.sandbox import machine as identity
from kernelwright.sandbox.judge.doctor import languages
from kernelwright.sandbox.machine import (
    ON_DEVICE,
    PACKAGES,
    package_headers,
    package_version,
    require_package,
    require_tools,
    too_new,
    versions_used,
)
from kernelwright.sandbox.verdict.errors import MachineError
from kernelwright.sandbox.workfolder import WorkFolder
from tests.gpu.languages import HONEST

EACH = pytest.mark.parametrize("language", PACKAGES)


@pytest.fixture
def nothing_installed(monkeypatch):
    """As on a machine where no such package is: other names stand in the table, and they are looked for as ever."""
    absent = {name: one._replace(module="not_on_this_machine") for name, one in PACKAGES.items()}
    monkeypatch.setattr(identity, "PACKAGES", absent)
    package_version.cache_clear()
    yield
    package_version.cache_clear()


def test_a_package_that_children_cannot_import_is_not_there(tmp_path, monkeypatch):
    (tmp_path / "on_the_path").mkdir()
    (tmp_path / "on_the_path" / "__init__.py").touch()
    facts = tmp_path / "on_the_path-2.0.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: on-the-path\nVersion: 2.0\n")
    (language, package), *_ = PACKAGES.items()
    made = package._replace(module="on_the_path", distribution="on-the-path")
    monkeypatch.setattr(identity, "PACKAGES", {language: made})
    monkeypatch.syspath_prepend(str(tmp_path))
    for variable, version in (("", "2.0"), (str(tmp_path), None)):
        monkeypatch.setenv("PYTHONPATH", variable)
        package_version.cache_clear()
        assert package_version(language) == version
    package_version.cache_clear()


@EACH
def test_without_the_package_one_sentence_says_how_to_install_it(nothing_installed, language):
    with pytest.raises(MachineError) as error:
        require_tools(language)
    assert PACKAGES[language].distribution in str(error.value)
    assert f"pip install '{PACKAGES[language].requirement}'" in str(error.value)


@EACH
def test_doctor_says_which_version_there_is_or_how_to_get_one(language):
    (line,) = [line for line in languages() if line.name == f"language: {language}"]
    if package_version(language):
        assert line.state == "ok" and str(package_version(language)) in line.found
    else:
        assert line.state == "absent" and PACKAGES[language].requirement in line.remedy


@pytest.mark.parametrize(
    ("version", "torch", "fits"),
    [("1.4.0", "2.11.0+cu130", True), ("1.5.1", "2.11.0", False), ("1.5.1", "2.12.0", True), ("1.10", "2.9", False)],
)
def test_a_package_that_needs_a_newer_torch_is_refused_with_the_remedy(version, torch, fits):
    said = too_new(PACKAGES["helion"], version, torch)
    named = ("torch 2.12", torch, "'helion<1.5'")
    assert said == "" if fits else all(word in said for word in named)
    assert too_new(PACKAGES["tilelang"], version, torch) == ""


def test_a_missing_package_is_no_fault_of_the_machine(nothing_installed, monkeypatch):
    monkeypatch.setattr("kernelwright.sandbox.judge.doctor.PACKAGES", identity.PACKAGES)
    assert {line.state for line in languages()} == {"absent"}


@EACH
def test_a_language_with_a_package_is_a_target_that_runs_on_a_device(language):
    assert TARGETS[language].device == "cuda" and language in ON_DEVICE


@pytest.mark.parametrize("language", ["cpp", "cuda", "triton", "python"])
def test_the_other_languages_need_no_package_of_their_own(language):
    require_package(language)


@EACH
def test_a_build_is_kept_under_the_version_of_the_package_that_its_source_uses(language):
    assert versions_used(next(iter(HONEST[language].values())).source) == {
        PACKAGES[language].distribution: package_version(language) or ""
    }
    assert versions_used("import torch\nimport triton\n") == {}


def test_what_a_language_has_compiled_stays_in_the_folder_that_ends_with_the_candidate():
    folder = WorkFolder()
    try:
        told = folder.environment(1)
        places = [told[name] for name in ("TILELANG_CACHE_DIR", "HELION_CACHE_DIR", "CUTE_DSL_CACHE_DIR")]
        assert all(place.startswith(f"{folder.path}/triton/") for place in places)
    finally:
        folder.close()


def test_a_child_finds_the_headers_of_cutlass_where_they_are():
    folder = WorkFolder()
    try:
        told = folder.environment(1).get("CPLUS_INCLUDE_PATH")
    finally:
        folder.close()
    assert told == (str(package_headers("cutlass")) if package_headers("cutlass") else None)


def test_a_package_without_its_headers_is_no_package(monkeypatch, tmp_path):
    (tmp_path / "hollow.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    hollow = PACKAGES["cutlass"]._replace(distribution="pytest", module="hollow")
    monkeypatch.setitem(identity.PACKAGES, "cutlass", hollow)
    package_version.cache_clear()
    assert package_headers("cutlass") is None
    package_version.cache_clear()
