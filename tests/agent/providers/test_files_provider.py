"""A person or a coding agent answers by filling files, and answers that were had before are not asked for again."""

import asyncio
import logging
import threading

import pytest

from kernelwright.agent.log.records import Reply, Request, Usage
from kernelwright.agent.log.view import fold
from kernelwright.agent.providers.kinds.files import FilesProvider
from kernelwright.agent.providers.provider import ProviderError, ProviderOptions
from kernelwright.agent.providers.registry import CACHED, CachedProvider, ReplyCache, answer_key, check_provider
from tests.support.processes import no_room
from tests.support.search import CONFIG, PROBLEM, Scripted, new_log, reply_with, searched

REQUEST = Request(model="m", prompt="Write it.")
ONE = CONFIG.model_copy(update={"attempts": 1})


def reply(text="words"):
    usage = Usage(input_tokens=5, cost_usd=0.5)
    named = {"model": "m", "provider": "p", "provider_request_id": None}
    return Reply(text=text, finish_reason="stop", usage=usage, latency_s=1.0, **named)


def task_in(folder):
    (task,) = folder.glob("*.task.md")
    return task


def test_the_task_file_is_the_prompt_word_for_word(tmp_path):
    with new_log(tmp_path / "run") as log:
        with pytest.raises(ProviderError):
            searched(log, provider=FilesProvider(tmp_path / "tasks"), config=ONE)

        (attempt,) = fold(PROBLEM.name, log.events(PROBLEM.name)).attempts
        assert task_in(tmp_path / "tasks").read_text() == log.prompt(attempt.prompt).text


def test_the_sentence_names_the_answer_that_is_missing(tmp_path):
    with new_log(tmp_path / "run") as log, pytest.raises(ProviderError, match=r"1 answer\(s\) \(\w+\.answer\.md\)"):
        searched(log, provider=FilesProvider(tmp_path / "tasks"), config=ONE)


@pytest.mark.parametrize("text", ["", " \n"])
def test_an_empty_answer_is_still_missing(tmp_path, text):
    files = FilesProvider(tmp_path)
    (tmp_path / f"{REQUEST.digest}.answer.md").write_text(text)

    with pytest.raises(ProviderError, match="waits for"):
        asyncio.run(files.complete(REQUEST, None, None))


def test_the_run_goes_on_once_the_answer_is_there(tmp_path):
    with new_log(tmp_path / "run") as log:
        with pytest.raises(ProviderError):
            searched(log, provider=FilesProvider(tmp_path / "tasks"), config=ONE)
        task = task_in(tmp_path / "tasks")
        task.with_name(task.name.replace(".task.", ".answer.")).write_text(reply_with("1.5"))

        view = searched(log, provider=FilesProvider(tmp_path / "tasks"), config=ONE)

    assert view.best.speedup == 1.5
    assert FilesProvider(tmp_path / "tasks").missing() == []


def test_a_second_run_with_the_cache_asks_nothing(tmp_path):
    answers, silent = ReplyCache(tmp_path / "cache"), Scripted({})
    with new_log(tmp_path / "one") as log:
        searched(log, provider=CachedProvider(Scripted(), answers, "here"))
    with new_log(tmp_path / "two") as log:
        view = searched(log, provider=CachedProvider(silent, answers, "here"))

    assert silent.requests == []
    assert {attempt.reply.note for attempt in view.attempts} == {CACHED}


def test_a_cached_reply_costs_nothing_and_keeps_its_tokens(tmp_path):
    answers = ReplyCache(tmp_path)
    answers.keep(answer_key(REQUEST, "here"), reply())

    found = asyncio.run(CachedProvider(Scripted({}), answers, "here").complete(REQUEST, None, None))

    assert (found.usage.cost_usd, found.usage.input_tokens, found.text) == (0.0, 5, "words")


@pytest.mark.parametrize("other", [{"sample": 1}, {"model": "n"}, {"prompt": "x"}, {"temperature": 0.5}])
def test_another_request_has_another_key(other):
    assert answer_key(REQUEST, "here") != answer_key(Request(**(REQUEST.model_dump() | other)), "here")


def test_another_server_has_another_key():
    assert answer_key(REQUEST, "here") != answer_key(REQUEST, "there")


def test_a_damaged_answer_is_told_with_its_path(tmp_path):
    answers = ReplyCache(tmp_path)
    answers.keep("abc", reply())
    (tmp_path / "ab" / "abc.json").write_text("{")

    with pytest.raises(ProviderError, match=r"abc\.json.*delete"):
        answers.find("abc")


def test_many_writers_of_one_answer_never_show_a_part_of_it(tmp_path):
    texts = {str(number) * 50_000 for number in range(4)}
    answers, seen = ReplyCache(tmp_path), set()
    answers.keep("abc", reply(min(texts)))
    writers = [
        threading.Thread(target=lambda text=text: [answers.keep("abc", reply(text)) for _ in range(5)])
        for text in texts
    ]
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        seen.add(answers.find("abc").text)
    assert seen <= texts
    assert [path.name for path in (tmp_path / "ab").iterdir()] == ["abc.json"]


def check_cache(folder):
    check_provider(ProviderOptions(kind="simulated", cache=str(folder)))


def test_a_cache_that_can_be_written_is_tried_without_a_trace(tmp_path):
    check_cache(tmp_path / "new" / "cache")
    assert list((tmp_path / "new" / "cache").iterdir()) == []


@pytest.mark.parametrize("name", ["some_file", "some_file/below"])
def test_a_file_in_the_place_of_the_cache_is_told_before_a_run_starts(tmp_path, name):
    (tmp_path / "some_file").touch()
    with pytest.raises(ProviderError, match=f"{name}.* --cache"):
        check_cache(tmp_path / name)


def test_a_cache_that_nobody_can_write_to_is_told_before_a_run_starts():
    with pytest.raises(ProviderError, match=r"write.* /proc/cache \("):
        check_cache("/proc/cache")


def test_a_full_cache_is_told_before_a_run_starts(tmp_path):
    with no_room(), pytest.raises(ProviderError, match=r"write.* make room"):
        check_cache(tmp_path)


def searched_with_a_cache_that_fails(folder):
    """The view of a run and its provider; a file has come in the way of the cache since the run began."""
    cache, asked = folder / "cache", Scripted()
    cache.touch()
    with new_log(folder / "run") as log:
        return searched(log, provider=CachedProvider(asked, ReplyCache(cache), "here")), asked


def test_an_answer_that_can_not_be_kept_is_given_all_the_same(tmp_path):
    view, asked = searched_with_a_cache_that_fails(tmp_path)
    assert [attempt.reply is not None for attempt in view.attempts] == [True] * CONFIG.attempts
    assert len(asked.requests) == CONFIG.attempts


def test_that_answers_can_not_be_kept_is_said_once(tmp_path, capsys, caplog):
    with caplog.at_level(logging.WARNING):
        searched_with_a_cache_that_fails(tmp_path)
    said = capsys.readouterr().err
    assert said.count("cannot write") == said.count("\n") == 1
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_a_reply_that_may_not_be_read_is_told_with_its_path(tmp_path):
    (tmp_path / "ab" / "abc.json").mkdir(parents=True)
    with pytest.raises(ProviderError, match=r"read .*abc\.json \(Is a dir"):
        ReplyCache(tmp_path).find("abc")
