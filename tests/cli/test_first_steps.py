"""First commands of a newcomer, public names and exit codes, also on a machine that lacks something."""

import json
import os
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
import typer

import kernelwright
from kernelwright.commands.run import checked_config
from kernelwright.sandbox.machine import PACKAGES, package_version
from kernelwright.sandbox.toolchain import python_header
from kernelwright.terminal import CODES, UserMistake, with_exit_codes, writing
from tests import structure
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


@pytest.mark.parametrize("language", PACKAGES)
def test_a_target_whose_package_is_missing_ends_with_3_and_how_to_install_it(kernelwright, language):
    if package_version(language):
        pytest.skip(f"{PACKAGES[language].distribution} is installed")
    done = kernelwright("run", "rms_norm", "--target", language)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (3, "", 1), done.stderr
    assert f"'{PACKAGES[language].requirement}'" in done.stderr


@pytest.mark.parametrize("language", PACKAGES)
def test_the_prompt_of_a_target_can_be_read_without_its_package(kernelwright, language):
    done = kernelwright("prompt", "rms_norm", "--target", language)
    assert done.returncode == 0 and done.stdout.startswith("You are an expert"), done.stderr


ROOT = Path(__file__).parents[2]
ASK_FOR_ALL = """
import sys
sys.path.append({root!r})
import kernelwright
for name in kernelwright.__all__:
    getattr(kernelwright, name)
"""


def test_every_public_name_has_a_home():
    assert sorted(name for names in kernelwright._HOMES.values() for name in names) == sorted(kernelwright.__all__)


def test_public_names_come_from_our_own_packages_beside_a_users_folders_of_the_same_names(tmp_path):
    for name in ("agent", "evals", "problems", "prompts", "sandbox"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise ImportError('the user\\'s own')\n")
    program = ASK_FOR_ALL.format(root=str(ROOT))
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_prompt_of_python_completes_every_public_name():
    command = [sys.executable, "-c", "import kernelwright; print(*dir(kernelwright))"]
    assert set(kernelwright.__all__) < set(subprocess.check_output(command, text=True).split())


@pytest.fixture(scope="module")
def classes():
    texts = [module.path.read_text(encoding="utf-8") for module in structure.modules().values()]
    return re.findall(r"^class (\w+)\b", "\n".join(texts), re.MULTILINE)


@pytest.mark.parametrize("name", CODES)
def test_a_name_of_the_table_is_one_class(classes, name):
    assert classes.count(name) == 1


def test_an_error_that_is_derived_from_another_has_its_own_code_and_other_errors_stay_loud():
    from kernelwright.agent.providers import AnswerPending

    @with_exit_codes
    def command(error):
        raise error

    with pytest.raises(typer.Exit) as ended:
        command(AnswerPending("later"))
    assert ended.value.exit_code == CODES["AnswerPending"] != CODES["ProviderError"]
    with pytest.raises(KeyError):
        command(KeyError("ours"))
