import json
import os
import re
import shutil
import subprocess

import pytest

from tests.docs.pages import DOCS, lines
from tests.docs.walking import RMS_NORM
from tests.support.service import Service, listening

PAGE = DOCS / "integrate.md"
SHELL = [line.text.partition(" #")[0].strip() for line in lines(PAGE) if line.words[0] in ("curl", "python")]


def test_the_page_names_every_path_and_refusal_of_the_service(tmp_path):
    with listening(tmp_path) as service:
        paths = service.client().ask("GET", "/openapi.json").body["paths"]
    text = PAGE.read_text()
    for path, methods in paths.items():
        for method in methods:
            assert f"{method.upper()} {path}".replace("{id}", "ID").replace("{name}", "NAME") in text
    rows = re.findall(r"^\| ([\d, ]+) \|", text, re.MULTILINE)
    named = {int(status) for row in rows for status in row.split(",")}
    refusals = {int(status) for methods in paths.values() for one in methods.values() for status in one["responses"]}
    assert {status for status in refusals if status > 400} - {404} <= named


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
