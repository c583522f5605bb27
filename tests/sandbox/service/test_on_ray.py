"""A service that hands its stages to Ray: the verdicts of the one that judges here, each once, also after a kill."""

import os
from importlib.util import find_spec

import pytest

from tests.support.problems import RIGHT, WRONG
from tests.support.service import Service, job

pytestmark = [
    pytest.mark.slow,
    pytest.mark.long,
    pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed; pip install 'kernelwright[ray]'"),
    pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="a cluster of this machine alone needs two cores"),
]
LEAVES = "import os\nos._exit(0)\n"
SENT = {"passed": RIGHT, "failed": WRONG, "ended": LEAVES}


@pytest.fixture
def service(tmp_path):
    made = Service(tmp_path, "--executor", "ray", "--device", "cpu", "--devices", "1")
    yield made
    made.end()


def outcomes(client, sources):
    asked = {name: client.ask("POST", "/v1/jobs?wait=300", job(source)) for name, source in sources.items()}
    reports = {name: answer.body["report"] for name, answer in asked.items()}
    return {name: (report["outcome"], report.get("stage")) for name, report in reports.items()}


def test_stages_handed_to_ray_end_in_the_verdicts_of_a_service_that_judges_here(service, tmp_path):
    there = outcomes(service.start(), SENT)
    (tmp_path / "here").mkdir()
    local = Service(tmp_path / "here", "--device", "cpu")
    try:
        here = outcomes(local.start(), SENT)
    finally:
        local.end()
    assert there == here
    assert [here[name][0] for name in SENT] == ["passed", "failed", "failed"]


def test_jobs_on_ray_are_judged_though_the_service_is_killed(service):
    client = service.start()
    names = [client.ask("POST", "/v1/jobs", job(source, 7)).body["id"] for source in SENT.values()]
    service.kill()
    client = service.start()
    ended = [client.ask("GET", f"/v1/jobs/{name}?wait=300").body["report"]["outcome"] for name in names]
    assert ended == ["passed", "failed", "failed"]
