import json
import os
import re
import shutil
import subprocess

import pytest

from kernelwright.sandbox.service.app import PATHS
from tests.docs.pages import DOCS, lines
from tests.docs.walking import RMS_NORM
from tests.support.service import Service

PAGE = DOCS / "serve.md"
SHELL = [line.text.partition(" #")[0].strip() for line in lines(PAGE) if line.words[0] in ("curl", "python")]


def test_every_path_of_the_service_stands_in_the_page():
    text = PAGE.read_text()
    for one in PATHS:
        words = f"{one.method.upper()} {one.path}".replace("{id}", "ID").replace("{name}", "NAME")
        assert words in text, words


def test_the_page_and_the_service_name_the_same_answers():
    rows = re.findall(r"^\| ([\d, ]+) \|", PAGE.read_text(), re.MULTILINE)
    told = {int(status) for row in rows for status in row.split(",")}
    refusals = {status for one in PATHS for status in one.answers if status > 400} - {404}
    assert refusals <= told


@pytest.mark.long
@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl")
def test_the_commands_of_curl_work(tmp_path):
    service = Service(tmp_path)
    socket = service.start().at.removeprefix("unix:")
    (tmp_path / "candidate.py").write_text(RMS_NORM)
    surroundings = os.environ | {"SOCKET": socket}
    answers = {}
    try:
        for command in SHELL:
            done = subprocess.run(
                ["bash", "-c", command], cwd=tmp_path, env=surroundings, capture_output=True, text=True, check=False
            )
            assert done.returncode == 0, f"{command}: {done.stderr}"
            answers[command] = done.stdout
            if "/v1/jobs?wait" in command:
                surroundings["ID"] = json.loads(done.stdout)["id"]
    finally:
        service.kill()
    jobs = [json.loads(answers[one]) for one in SHELL if "/v1/jobs" in one and "events" not in one]
    assert [one["state"] for one in jobs] == ["done"] * 3
    assert "event: done" in next(answers[one] for one in SHELL if "events" in one)
    assert not [one for one in answers.values() if '"error": "' in one]
