"""A run's open asks go to a batch service, which answers some time later; against a real server."""

import json

import pytest
from typer.testing import CliRunner

from kernelwright.agent.log.view import fold
from kernelwright.agent.providers import AnswerPending, OpenAISettings, ProviderError
from kernelwright.agent.providers.batch import BatchProvider, BatchService
from kernelwright.cli import app
from tests.support.search import CONFIG, PROBLEM, new_log, reply_with, searched

WAITING = 3
ALL = CONFIG.model_copy(update={"slots": WAITING, "drafts": WAITING, "attempts": WAITING})
REPLIES = [reply_with("2.0"), reply_with("3.0"), reply_with("4.0"), reply_with("5.0")]


@pytest.fixture
def log(tmp_path):
    with new_log(tmp_path / "run") as log:
        with pytest.raises(AnswerPending, match="batch"):
            searched(log, provider=BatchProvider(), config=ALL)
        log.run_lock.release()  # as at the end of a process that rests
        yield log


@pytest.fixture
def server(model_server):
    return model_server(*REPLIES)


def service(log, server):
    return BatchService(log, OpenAISettings(base_url=server.base_url), {})


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
    view = searched(log, provider=BatchProvider(), config=ALL)
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
    before = [attempt.reply for attempt in fold(PROBLEM.name, log.events(PROBLEM.name)).attempts]
    (log.folder / "batches.json").write_text(note)
    assert service(log, server).fetch().answered == 0
    assert [attempt.reply for attempt in fold(PROBLEM.name, log.events(PROBLEM.name)).attempts] == before


def test_a_large_run_goes_out_in_several_files(log, server, monkeypatch):
    monkeypatch.setattr("kernelwright.agent.providers.batch.MOST_LINES", 2)
    assert [one.requests for one in service(log, server).send()] == [2, 1]
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
    assert "in_progress: 0 of 3 done" in fetched.stderr


def test_answers_wait_while_another_process_goes_on_with_the_run(log, server):
    service(log, server).send()
    log.run_lock.take()
    words = ("fetch", "--wait", "--every-s", "0.01")
    refused = called(log, server, *words)
    assert (refused.exit_code, "goes on with the run" in refused.stderr) == (2, True), refused.output
    log.run_lock.release()
    assert called(log, server, *words).exit_code == 0
    assert all(attempt.reply for attempt in fold(PROBLEM.name, log.events(PROBLEM.name)).attempts)
