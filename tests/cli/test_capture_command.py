import json

import pytest

pytestmark = pytest.mark.slow

PROGRAM = """
import sys

import torch
from torch import nn

torch.set_num_threads(1)
model = nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.Linear(512, 256), nn.LayerNorm(256)).eval()
with torch.no_grad():
    for _ in range(int(sys.argv[1])):
        model(torch.randn(512, 256))
print("the program's own words")
"""


@pytest.fixture
def captured(kernelwright, files):
    (files / "slow.py").write_text(PROGRAM)
    done = kernelwright("capture", "slow.py", "--out", "capture", "--", 3)
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def test_a_script_runs_as_it_is_and_its_parts_are_problems_that_are_sound(kernelwright, files, captured):
    assert "the program's own words" in captured.stdout and "kernelwright run capture" in captured.stdout
    assert (files / "capture/split.svg").read_text().startswith("<svg")
    split = json.loads((files / "capture/split.json").read_text())
    checked = kernelwright("problems", "check", *(f"capture/problems/{one['part']}" for one in split["chosen"]))
    assert split["chosen"] and checked.returncode == 0, checked.stdout


@pytest.mark.long
def test_a_capture_is_searched_with_the_attempts_where_the_time_is(kernelwright, files, captured):
    split = json.loads(kernelwright("split", "capture", "--top", 2, "--json").stdout)
    done = kernelwright(
        "run", "capture", "--top", 2, "--provider", "simulated", "--attempts", 4, "--set", "share=false", "--out", "out"
    )
    assert done.returncode in (0, 1), done.stdout + done.stderr  # what a made-up landscape holds is a matter of luck
    shown = kernelwright("show", "out").stdout
    assert all(one["part"] in shown for one in split["chosen"])
    assert kernelwright("replay", "out").returncode == 0


def test_a_script_that_fails_shows_its_own_traceback_and_ends_with_2(kernelwright, files):
    (files / "fails.py").write_text("raise KeyError('mine')")
    done = kernelwright("capture", "fails.py", "--out", "capture")
    assert done.returncode == 2
    assert "KeyError: 'mine'" in done.stderr and "mend it first" in done.stderr
    assert not (files / "capture").exists()


def test_within_a_script_only_what_it_names_is_captured(kernelwright, files):
    (files / "part.py").write_text(
        "import kernelwright, torch\nfrom torch import nn\ntorch.set_num_threads(1)\n"
        "model, other = nn.Linear(512, 512).eval(), nn.Conv1d(8, 8, 3)\nother(torch.randn(2, 8, 64))\n"
        "with kernelwright.capturing(), torch.no_grad():\n    model(torch.randn(2048, 512))\n"
        "    model(torch.randn(2048, 512))\n"
    )
    done = kernelwright("capture", "part.py", "--out", "capture")
    assert done.returncode == 0, done.stdout + done.stderr
    roots = {module["root"] for module in json.loads((files / "capture/capture.json").read_text())["modules"]}
    assert roots == {"Linear"}
