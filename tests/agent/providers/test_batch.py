"""The open asks of a run go out as a batch file, and its answers come back in any order, with errors and gaps."""

import json
import random
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from kernelwright.agent.config import ServerOptions
from kernelwright.agent.log.view import fold
from kernelwright.agent.providers import ProviderError
from kernelwright.agent.providers.batch import BatchProvider, BatchService, batch_line, import_answers, open_requests
from kernelwright.cli import app
from tests.support.search import CONFIG, PROBLEM, new_log, reply_with, searched

WAITING = 4


@pytest.fixture
def log(tmp_path):
    with new_log(tmp_path / "run") as log:
        with pytest.raises(ProviderError, match="wait for a batch"):
            searched(log, provider=BatchProvider(), config=config())
        log.run_lock.release()  # as at the end of a process that rests
        yield log


def config(attempts=WAITING):
    return CONFIG.model_copy(update={"slots": WAITING, "drafts": WAITING, "attempts": attempts})


def answers(log):
    """A line for each open request, in the form of the batch service."""
    return [answer(one.request, speed) for speed, one in enumerate(open_requests(log), start=2)]


def answer(request, speed):
    message = {"role": "assistant", "content": reply_with(f"{speed}.0")}
    choices = [{"index": 0, "finish_reason": "stop", "message": message}]
    body = {"model": "scripted-1", "choices": choices, "usage": {"prompt_tokens": 5, "completion_tokens": 7}}
    response = {"status_code": 200, "request_id": "r", "body": body}
    return json.dumps({"custom_id": request.digest, "response": response, "error": None})


def replies(log):
    return [attempt.reply for attempt in fold(PROBLEM.name, log.events(PROBLEM.name)).attempts]


def test_each_line_of_the_export_holds_the_prompt_of_its_ask_under_a_short_id_of_its_own(log):
    asks = list(open_requests(log))
    lines = [json.loads(batch_line(one.request)) for one in asks]
    assert [line["body"]["messages"][0]["content"] for line in lines] == [one.request.prompt for one in asks]
    ids = {line["custom_id"] for line in lines}
    assert len(ids) == len(lines) == WAITING
    assert max(map(len, ids)) <= 64


def test_answers_in_any_order_go_to_their_own_asks(log):
    lines = answers(log)
    wanted = [one.request.digest for one in open_requests(log)]
    random.Random(3).shuffle(lines)
    found = import_answers(log, lines)
    assert (found.answered, found.missing, found.failed) == (WAITING, (), {})
    view = searched(log, provider=BatchProvider(), config=config())
    assert [attempt.request_digest for attempt in view.attempts] == wanted
    assert [attempt.speedup for attempt in view.attempts] == pytest.approx([2.0, 3.0, 4.0, 5.0])


def test_importing_twice_changes_nothing(log):
    lines = answers(log)
    import_answers(log, lines)
    before = replies(log)
    again = import_answers(log, lines)
    assert (again.answered, len(again.unknown)) == (0, WAITING)
    assert replies(log) == before


def test_missing_lines_stay_open(log):
    found = import_answers(log, answers(log)[1:])
    assert found.missing == tuple(one.request.digest for one in open_requests(log))
    assert len(found.missing) == 1


FAULTS = {
    "an error": ({"error": {"message": "expired"}, "response": None}, "failed: expired"),
    "a status": ({"response": {"status_code": 429, "body": {"error": {"message": "slow"}}}}, "status 429: slow"),
    "another body": ({"response": {"status_code": 200, "body": {"a": 1}}}, "no chat completion"),
    "no response": ({}, "no reason was given"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_line_that_failed_says_why_and_leaves_its_ask_open(log, name):
    line, why = FAULTS[name]
    digest = next(open_requests(log)).request.digest
    found = import_answers(log, [json.dumps({"custom_id": digest} | line)])
    assert why in found.failed[digest]
    assert digest in found.missing


@pytest.mark.parametrize("line", ["{", "[]", "null", '{"custom_id": 3}'])
def test_a_line_that_cannot_be_read_is_named_by_its_number(log, line):
    assert list(import_answers(log, ["", line]).failed) == ["line 2"]


def test_the_commands_carry_a_run_from_ask_to_verdict(log, tmp_path):
    sent, got = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    exported = CliRunner().invoke(app, ["batch", "export", str(log.folder), str(sent)])
    assert exported.exit_code == 0, exported.output
    assert len(sent.read_text().splitlines()) == WAITING
    got.write_text("\n".join(answers(log)))
    imported = CliRunner().invoke(app, ["batch", "import", str(log.folder), str(got), "--json"])
    assert imported.exit_code == 0, imported.output
    assert json.loads(imported.stdout)["answered"] == WAITING
    assert all(attempt.passed for attempt in searched(log, provider=BatchProvider(), config=config()).attempts)


def test_a_large_file_is_read_line_by_line(log, tmp_path):
    padding = json.dumps({"custom_id": "of another run", "padding": "x" * 1_000_000})
    with open(tmp_path / "out.jsonl", "w") as file:
        for _ in range(100):
            file.write(f"{padding}\n")
        file.write("\n".join(answers(log)))
    # Not by getrusage, which would take over the memory of the process that starts this one.
    program = (
        "import sys\nfrom kernelwright.cli import app\n"
        "try:\n    app()\nfinally:\n"
        "    (peak,) = (line for line in open('/proc/self/status') if line.startswith('VmHWM'))\n"
        "    print(int(peak.split()[1]) // 1024, file=sys.stderr)\n"
    )
    words = ["batch", "import", str(log.folder), str(tmp_path / "out.jsonl"), "--json"]
    done = subprocess.run([sys.executable, "-c", program, *words], capture_output=True, text=True, check=False)

    assert (done.returncode, json.loads(done.stdout)["answered"]) == (0, WAITING), done.stderr
    assert int(done.stderr.split()[-1]) < 200, done.stderr


def imported(log, path, *lines):
    """How the command ends."""
    path.write_text("\n".join(lines), encoding="utf-8")
    return CliRunner().invoke(app, ["batch", "import", str(log.folder), str(path)]).exit_code


def test_an_import_that_leaves_gaps_ends_with_code_1_and_a_separator_inside_an_answer_makes_none(log, tmp_path):
    lines = [json.dumps(json.loads(line) | {"note": "a\u2028b\x85c"}, ensure_ascii=False) for line in answers(log)]
    assert imported(log, tmp_path / "one.jsonl", lines[0]) == 1
    assert imported(log, tmp_path / "others.jsonl", *lines[1:]) == 0


def test_nothing_to_export_is_told_in_a_sentence(tmp_path):
    with new_log(tmp_path / "run"):
        ended = CliRunner().invoke(app, ["batch", "export", str(tmp_path / "run"), str(tmp_path / "in.jsonl")])

    assert ended.exit_code == 2
    assert "waits for an answer" in ended.stderr


@pytest.fixture
def server(model_server):
    return model_server(*(reply_with(f"{speed}.0") for speed in range(2, 7)))


def service(log, server):
    return BatchService(log, ServerOptions(base_url=server.base_url), {})


def waited(log, server):
    looks = []
    service(log, server).wait(0.001, looks.append)
    return looks


def test_a_batch_is_waited_for_with_a_word_at_each_look_and_its_answers_are_judged(log, server):
    service(log, server).send()
    looks = waited(log, server)
    assert [one.status for (one,) in looks] == ["in_progress", "in_progress", "completed"]
    assert (looks[-1][0].done, looks[-1][0].requests) == (WAITING, WAITING)
    found = service(log, server).fetch()
    assert (found.answered, found.missing) == (WAITING, ())
    view = searched(log, provider=BatchProvider(), config=config())
    assert [attempt.outcome for attempt in view.attempts] == ["passed"] * WAITING


def test_what_is_under_way_is_not_taken_before_it_has_ended_and_not_sent_again(log, server):
    service(log, server).send()
    with pytest.raises(ProviderError, match="is under way"):
        service(log, server).send()
    found = service(log, server).fetch()
    assert (found.answered, len(found.missing)) == (0, WAITING)
    assert len(service(log, server).note.sent) == 1


def test_a_batch_whose_note_was_lost_is_found_on_the_server(log, server):
    before = service(log, server).send()
    (log.folder / "batches.json").unlink()
    assert service(log, server).send() == before
    assert len(server.batches) == 1


def test_lines_that_failed_are_told_and_can_be_sent_again(log, server):
    server.batch_errors = 1
    service(log, server).send()
    waited(log, server)
    found = service(log, server).fetch()
    (failed,) = found.failed.values()
    assert found.answered == WAITING - 1 and "there was no time" in failed
    assert service(log, server).send()[0].requests == 1
    waited(log, server)
    assert service(log, server).fetch().missing == ()


def test_a_whole_batch_that_failed_is_sent_anew_and_not_found_again(log, server):
    server.batch_errors = WAITING
    service(log, server).send()
    waited(log, server)
    service(log, server).fetch()
    service(log, server).send()
    assert len(server.batches) == 2


def test_fetching_twice_changes_nothing(log, server):
    service(log, server).send()
    note = (log.folder / "batches.json").read_text()
    waited(log, server)
    service(log, server).fetch()
    before = replies(log)
    (log.folder / "batches.json").write_text(note)
    assert service(log, server).fetch().answered == 0
    assert replies(log) == before


def test_a_large_run_goes_out_in_several_files(log, server, monkeypatch):
    monkeypatch.setattr("kernelwright.agent.providers.batch.MOST_LINES", 2)
    assert [one.requests for one in service(log, server).send()] == [2, 2]
    waited(log, server)
    assert service(log, server).fetch().missing == ()


def test_a_server_without_batches_and_nothing_to_fetch_are_told_in_a_sentence(log, server):
    server.batches = None
    with pytest.raises(ProviderError, match=r"127\.0\.0\.1:\d+.* batches \(404"):
        service(log, server).send()
    ended = called(log, server, "fetch")
    assert (ended.exit_code, "is under way; send one" in ended.stderr) == (2, True)


def called(log, server, *words):
    return CliRunner().invoke(app, ["batch", *words, str(log.folder), "--base-url", server.base_url])


def test_the_commands_carry_a_run_over_the_service(log, server):
    sent = called(log, server, "send", "--json")
    assert (sent.exit_code, json.loads(sent.stdout)["batches"][0]["requests"]) == (0, WAITING), sent.output
    fetched = called(log, server, "fetch", "--wait", "--every-s", "0.01", "--json")
    assert (fetched.exit_code, json.loads(fetched.stdout)["answered"]) == (0, WAITING), fetched.output
    assert "in_progress: 0 of 4 done" in fetched.stderr


def test_answers_wait_while_another_process_goes_on_with_the_run(log, server):
    service(log, server).send()
    log.run_lock.take()
    words = ("fetch", "--wait", "--every-s", "0.01")
    refused = called(log, server, *words)
    assert (refused.exit_code, "goes on with the run" in refused.stderr) == (2, True), refused.output
    log.run_lock.release()
    assert called(log, server, *words).exit_code == 0
    assert all(replies(log))
