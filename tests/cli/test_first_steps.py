"""First commands of a newcomer, also on a machine that lacks something."""

import json
import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from kernelwright.commands.run import checked_config
from kernelwright.sandbox.toolchain import python_header
from kernelwright.terminal import UserMistake, writing
from tests.support.runs import made_run


def test_version_names_the_version_and_ends_with_0(kernelwright):
    done = kernelwright("--version")
    assert (done.returncode, done.stdout.split(",")[0].strip()) == (0, f"kernelwright {version('kernelwright')}")


def test_what_the_disk_refuses_names_the_place_and_the_remedy():
    place = Path("/proc/nowhere")
    with pytest.raises(UserMistake, match=r"/proc/nowhere \(.*another"), writing(place):
        place.write_text("")


@pytest.mark.parametrize(
    ("words", "module", "said"),
    [
        (("serve",), "starlette", "'kernelwright[serve]'"),
        (("mcp",), "mcp", "'kernelwright[mcp]'"),
        (("inspect", "run"), "starlette", "'kernelwright[inspect]'"),
    ],
    ids=["serve", "mcp", "inspect"],
)
def test_a_machine_without_the_library_of_an_extra_is_told_how_to_get_it(kernelwright, tmp_path, words, module, said):
    (tmp_path / "without").mkdir()
    (tmp_path / "without" / f"{module}.py").write_text(f"raise ImportError(name={module!r})")
    made_run(tmp_path / "run", problems=1, attempts=1)
    done = kernelwright(*words, PYTHONPATH=str(tmp_path / "without"))
    assert (done.returncode, done.stderr.count("\n")) == (3, 1), done.stderr
    assert said in done.stderr


@pytest.mark.parametrize(
    ("setting", "said"),
    [({"patience": "x"}, r"'patience'.* 'x'.* integer$"), ({"budget": {"usd": -1}}, r"'budget\.usd'")],
)
def test_a_search_setting_of_the_wrong_kind_is_told_in_a_sentence(setting, said):
    with pytest.raises(UserMistake, match=said):
        checked_config({"model": "some-model"} | setting)


@pytest.fixture(scope="module")
def findings(tmp_path_factory):
    """Findings of the doctor by name, without a compiler and a cache."""
    done = subprocess.run(
        [sys.executable, "-m", "kernelwright", "doctor", "--json"],
        capture_output=True, text=True, check=False, cwd=tmp_path_factory.mktemp("doctor"),
        env=os.environ | {"CXX": "/nowhere/g++", "KERNELWRIGHT_CACHE": "/dev/null/cache"},
    )  # fmt: skip
    return {finding["name"]: finding for finding in json.loads(done.stdout)}


@pytest.mark.slow
def test_the_doctor_names_what_it_did_not_find_and_how_to_have_another(findings):
    found = findings["C++ compiler"]
    assert found["state"] == "absent" and "/nowhere/g++" in found["found"]
    found = findings["cache"]
    assert found["state"] == "absent" and "/dev/null/cache" in found["found"]
    assert "set KERNELWRIGHT_CACHE" in found["remedy"]
    assert str(python_header()) in findings["Python headers"]["found"]
