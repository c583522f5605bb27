"""Facts of the machine: packages of further languages, and memory within control groups."""

import pytest

from kernelwright.sandbox import machine as identity
from kernelwright.sandbox.judge.doctor import languages
from kernelwright.sandbox.machine import (
    PACKAGES,
    child_limit_bytes,
    free_bytes,
    gib,
    machine_bytes,
    package_headers,
    package_version,
    require_package,
    require_tools,
    too_new,
    versions_used,
)
from kernelwright.sandbox.verdict.errors import MachineError
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


@pytest.mark.parametrize("language", ["cpp", "cuda", "triton", "python"])
def test_the_other_languages_need_no_package_of_their_own(language):
    require_package(language)


@EACH
def test_a_build_is_kept_under_the_version_of_the_package_that_its_source_uses(language):
    assert versions_used(next(iter(HONEST[language].values())).source) == {
        PACKAGES[language].distribution: package_version(language) or ""
    }
    assert versions_used("import torch\nimport triton\n") == {}


def test_what_a_language_has_compiled_stays_in_the_folder_that_ends_with_the_candidate(folder):
    told = folder.environment(1)
    places = [told[name] for name in ("TILELANG_CACHE_DIR", "HELION_CACHE_DIR", "CUTE_DSL_CACHE_DIR")]
    assert all(place.startswith(f"{folder.path}/triton/") for place in places)


def test_a_child_finds_the_headers_of_cutlass_where_they_are(folder):
    told = folder.environment(1).get("CPLUS_INCLUDE_PATH")
    assert told == (str(package_headers("cutlass")) if package_headers("cutlass") else None)


def test_a_package_without_its_headers_is_no_package(monkeypatch, tmp_path):
    (tmp_path / "hollow.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    hollow = PACKAGES["cutlass"]._replace(distribution="pytest", module="hollow")
    monkeypatch.setitem(identity.PACKAGES, "cutlass", hollow)
    package_version.cache_clear()
    assert package_headers("cutlass") is None
    package_version.cache_clear()


GIB = 2**30


@pytest.mark.parametrize(
    ("files", "gibs"),
    [
        ({"unrelated": ""}, (64, 48)),
        ({"proc/self/cgroup": ""}, (64, 48)),
        (
            {
                "proc/self/cgroup": "0::/inner/most",
                "sys/fs/cgroup/inner/most/memory.max": 8 * GIB,
                "sys/fs/cgroup/inner/most/memory.current": 5 * GIB,
                "sys/fs/cgroup/inner/most/memory.stat": f"anon 1\ninactive_file {2 * GIB}\nactive_file 7",
            },
            (8, 5),
        ),
        (
            {
                "proc/self/cgroup": "0::/outer/inner",
                "sys/fs/cgroup/outer/inner/memory.max": "max",
                "sys/fs/cgroup/outer/inner/memory.current": GIB,
                "sys/fs/cgroup/outer/memory.max": 4 * GIB,
                "sys/fs/cgroup/outer/memory.current": 3 * GIB,
            },
            (4, 1),
        ),
        (
            {
                "proc/self/cgroup": "0::/docker/0123abcd",
                "sys/fs/cgroup/memory.max": 2 * GIB,
                "sys/fs/cgroup/memory.current": GIB,
            },
            (2, 1),
        ),
        (
            {
                "proc/self/cgroup": "5:cpu,cpuacct:/other\n4:memory:/jobs/7\n0::/",
                "sys/fs/cgroup/memory/jobs/7/memory.limit_in_bytes": 6 * GIB,
                "sys/fs/cgroup/memory/jobs/7/memory.usage_in_bytes": 4 * GIB,
                "sys/fs/cgroup/memory/jobs/7/memory.stat": f"inactive_file 5\ntotal_inactive_file {GIB}",
            },
            (6, 3),
        ),
        (
            {
                "proc/self/cgroup": "4:memory:/",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": 9223372036854771712,
                "sys/fs/cgroup/memory/memory.usage_in_bytes": 4 * GIB,
            },
            (64, 48),
        ),
        (
            {"proc/self/cgroup": "0::/", "sys/fs/cgroup/memory.max": GIB, "sys/fs/cgroup/memory.current": 2 * GIB},
            (1, 0),
        ),
    ],
    ids=["not told of", "none", "version 2", "around ours", "not there", "version 1", "no limit", "never below nought"],
)
def test_control_groups_bound_the_machine_and_what_is_free(tmp_path, files, gibs):
    """A machine of 64 GiB with 48 GiB free, as its kernel tells of it; what files are kept of is given back at once."""
    meminfo = f"MemTotal: {64 * 2**20} kB\nMemFree: 1 kB\nMemAvailable: {48 * 2**20} kB"
    for path, text in {"proc/meminfo": meminfo, **files}.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(f"{text}\n" if text else "")
    assert (machine_bytes(tmp_path) / GIB, free_bytes(tmp_path) / GIB) == gibs


def test_a_child_is_left_less_than_the_whole_of_this_machine():
    assert 0 < child_limit_bytes() < machine_bytes()
    assert 0 <= free_bytes() <= machine_bytes()


@pytest.mark.parametrize(("count", "said"), [(3 * GIB, "3 GiB"), (1.5 * GIB, "1.5 GiB"), (2**29, "512 MiB")])
def test_sizes_are_told_in_the_unit_that_fits(count, said):
    assert gib(count) == said
