import re
import tomllib

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.packaging.environments import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
NEEDED = [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["dev"]]
PINS = {
    canonicalize_name(name): version
    for name, version in re.findall(r"^([\w.-]+)==(\S+)$", (ROOT / "requirements-dev.txt").read_text(), re.MULTILINE)
}
FOLDER = ROOT / ".github"
WORKFLOWS = {path.name: yaml.safe_load(path.read_text()) for path in (FOLDER / "workflows").glob("*.yml")}
STEPS = [step for flow in WORKFLOWS.values() for job in flow["jobs"].values() for step in job["steps"]]


@pytest.mark.parametrize("needed", NEEDED)
def test_what_the_project_needs_is_pinned_to_a_version_that_it_takes(needed):
    requirement = Requirement(needed)
    assert PINS[canonicalize_name(requirement.name)] in requirement.specifier


def test_every_line_of_the_pins_is_one_exact_version_from_an_index():
    lines = (ROOT / "requirements-dev.txt").read_text().splitlines()
    assert len(PINS) == len([line for line in lines if line and not line.startswith("#")])
    assert not [version for version in PINS.values() if not re.fullmatch(r"[\d.]+", version)]


def test_workflows_run_what_the_makefile_has():
    targets = re.findall(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)[0].split()
    named = [word for step in STEPS for word in re.findall(r"\bmake (\w+)", step.get("run", ""))]
    assert {"run", "docs", "setup", "doctor"} <= set(named) <= set(targets)
    assert ".ci/run" in [step.get("run") for step in STEPS]


def test_actions_of_others_are_pinned_and_workflows_run_on_the_oldest_python_that_is_promised():
    used = [step["uses"] for step in STEPS if "uses" in step]
    assert used and all(re.fullmatch(r"[\w-]+/[\w-]+@v\d+\.\d+\.\d+", one) for one in used)
    pythons = WORKFLOWS["ci.yml"]["jobs"]["test"]["strategy"]["matrix"]["python"]
    assert PROJECT["requires-python"] == f">={pythons[0]}"


def test_whoever_reports_a_bug_is_asked_for_the_doctor():
    (asked,) = [
        part
        for part in yaml.safe_load((FOLDER / "ISSUE_TEMPLATE" / "bug.yml").read_text())["body"]
        if part.get("id") == "doctor"
    ]
    assert "kernelwright doctor" in asked["attributes"]["label"] and asked["validations"]["required"]
