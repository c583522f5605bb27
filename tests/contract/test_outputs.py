import json
import os
import signal
import subprocess
import sys
import tomllib
from concurrent.futures import ThreadPoolExecutor

import pytest

from kernelwright import terminal
from tests.contract import outputs, recorded
from tests.support.commands import run_with
from tests.support.processes import HEARING_CTRL_C

EXITS = tomllib.loads((recorded.DATA / "exits.toml").read_text(encoding="utf-8"))
COMMANDS = [(int(code), words) for code, lines in EXITS["commands"].items() for words in lines]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """The records as they lie in a user's folder, and a record whose speedup was raised by hand."""
    found = outputs.prepared(tmp_path_factory.mktemp("place"))
    forged = json.loads((found / "passed.json").read_text()) | {"speedup": 99.0}
    (found / "forged.json").write_text(json.dumps(forged))
    return found


@pytest.fixture(scope="module")
def ended(place):
    """Every recorded command, finished; two at a time, since most of each is its start."""
    with ThreadPoolExecutor(2) as pool:
        done = pool.map(lambda words: run_with(place, *words.split()), [words for _, words in COMMANDS])
    return dict(zip([words for _, words in COMMANDS], done, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize(("code", "words"), COMMANDS)
def test_a_command_ends_with_its_code(ended, code, words):
    if code == 3:
        pytest.importorskip("torch")
        import torch

        if torch.cuda.is_available():
            pytest.skip("this machine has the GPU that the command asks for")
    done = ended[words]
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stderr


def test_ctrl_c_ends_with_its_code(tmp_path):
    os.mkfifo(tmp_path / "reply")
    command = [sys.executable, "-c", HEARING_CTRL_C, "extract", str(tmp_path / "reply")]
    surroundings = os.environ | {"PYTHONPATH": str(outputs.ROOT)}
    with (
        subprocess.Popen(command, stderr=subprocess.PIPE, env=surroundings) as process,
        (tmp_path / "reply").open("w"),  # opened once the command reads
    ):
        process.send_signal(signal.SIGINT)
        process.wait(60)
    assert process.returncode == 130


def test_the_codes_are_those_that_are_explained():
    names = ("DONE", "FELL_SHORT", "USER_MISTAKE", "MACHINE_LACKS", "INTERRUPTED")
    assert [str(getattr(terminal, name)) for name in names] == list(EXITS["meaning"])
    assert {int(code) for code in EXITS["meaning"]} >= set(recorded.read("errors")["errors"].values())


def differing(found, labels):
    renames = recorded.renames_of("json_keys")
    held = {label: keys for label, keys in recorded.read("json_keys").items() if label in labels}
    live = outputs.surface_of(found, held, renames)
    return recorded.faults("json_keys", held, live, renames) + recorded.silent_faults("json_keys", held, live, renames)


def test_what_reads_records_prints_the_recorded_keys(place):
    assert differing(outputs.quick_outputs(place), outputs.QUICK) == []


@pytest.mark.long
@pytest.mark.slow
def test_what_judges_prints_the_recorded_keys(place):
    assert differing(outputs.slow_outputs(place), outputs.SLOW) == []


def test_every_recorded_output_is_looked_at():
    assert set(recorded.read("json_keys")) == {*outputs.QUICK, *outputs.SLOW} - outputs.NOT_JSON


def test_keys_of_a_missing_part_are_neither_lost_nor_new():
    held = {"judge": {"floor": "key", "floor.copy_ms": "key", "rows": "key", "rows[].rank": "key", "log": "key"}}
    found = {"judge": outputs.output_of('{"floor": null, "rows": [], "outcome": "passed"}')}
    faults = recorded.faults("json_keys", held, outputs.surface_of(found, held, {}), {})
    assert len(faults) == 2
    assert "judge: log is gone" in faults[0] and "judge: outcome is not recorded" in faults[1]
