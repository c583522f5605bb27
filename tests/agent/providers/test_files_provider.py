"""A person or a coding agent answers by filling files, and answers that were had before are not asked for again."""

import asyncio
import logging
import threading

import pytest

from kernelwright.agent.config import ProviderOptions
from kernelwright.agent.log.records import Ask, Reply, Request, Usage
from kernelwright.agent.log.view import fold
from kernelwright.agent.providers import CACHED, CachedProvider, ProviderError, ReplyCache, answer_key, check_provider
from kernelwright.agent.providers.files import FilesProvider
from tests.support.processes import no_room
from tests.support.search import CONFIG, PROBLEM, Scripted, new_log, reply_with, searched

REQUEST = Request(model="m", prompt="Write it.")
ASK = {"attempt": 1, "role": "propose", "target": "cpp", "parent": None, "idea": "", "directive": "", "model": "m"}
ONE = CONFIG.model_copy(update={"attempts": 1})


def reply(text="words"):
    usage = Usage(input_tokens=5, cost_usd=0.5)
    named = {"model": "m", "provider": "p", "provider_request_id": None}
    return Reply(text=text, finish_reason="stop", usage=usage, latency_s=1.0, **named)


def test_a_run_whose_answer_is_named_as_missing_goes_on_once_it_is_there(tmp_path):
    """The task file is the prompt word for word."""
    with new_log(tmp_path / "run") as log:
        with pytest.raises(ProviderError, match=rf"1 answer\(s\) \({PROBLEM.name}-\w+\.answer\.md\)"):
            searched(log, provider=FilesProvider(tmp_path / "tasks"), config=ONE)
        (attempt,) = fold(PROBLEM.name, log.events(PROBLEM.name)).attempts
        (task,) = (tmp_path / "tasks").glob("*.task.md")
        assert task.read_text() == log.prompt(attempt.prompt).text
        task.with_name(task.name.replace(".task.", ".answer.")).write_text(reply_with("1.5"))

        view = searched(log, provider=FilesProvider(tmp_path / "tasks"), config=ONE)

    assert view.best.speedup == 1.5
    assert FilesProvider(tmp_path / "tasks").missing() == []


def test_tasks_are_named_after_their_problem_and_answers_of_an_older_release_are_found(tmp_path):
    files = FilesProvider(tmp_path)
    asks = [Ask(**ASK, problem=name) for name in ("level1/3", "../x y")]
    for ask in asks:
        with pytest.raises(ProviderError, match="waits for"):
            asyncio.run(files.complete(REQUEST, ask, None))
    names = sorted(path.name.partition("-")[0] for path in tmp_path.iterdir())
    assert names == ["_x_y", "level1_3"]
    (tmp_path / f"{REQUEST.digest}.answer.md").write_text("words")
    assert asyncio.run(files.complete(REQUEST, asks[0], None)).text == "words"


@pytest.mark.parametrize("text", ["", " \n"])
def test_an_empty_answer_is_still_missing(tmp_path, text):
    files = FilesProvider(tmp_path)
    (tmp_path / f"{REQUEST.digest}.answer.md").write_text(text)

    with pytest.raises(ProviderError, match="waits for"):
        asyncio.run(files.complete(REQUEST, None, None))


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
def test_another_request_has_another_key_and_another_server_too(other):
    changed = Request(**(REQUEST.model_dump() | other))
    assert len({answer_key(REQUEST, "here"), answer_key(changed, "here"), answer_key(REQUEST, "there")}) == 3


def test_an_answer_that_is_damaged_or_may_not_be_read_is_told_with_its_path(tmp_path):
    answers, path = ReplyCache(tmp_path), tmp_path / "ab" / "abc.json"
    answers.keep("abc", reply())
    path.write_text("{")
    with pytest.raises(ProviderError, match=r"abc\.json.*delete"):
        answers.find("abc")
    path.unlink()
    path.mkdir()
    with pytest.raises(ProviderError, match=r"read .*abc\.json \(Is a dir"):
        answers.find("abc")


def test_many_writers_of_one_answer_never_show_a_part_of_it(tmp_path):
    texts = {str(number) * 50_000 for number in range(4)}
    answers, seen = ReplyCache(tmp_path), set()
    answers.keep("abc", reply(min(texts)))

    def write(text):
        for _ in range(5):
            answers.keep("abc", reply(text))

    writers = [threading.Thread(target=write, args=[text]) for text in texts]
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


def test_a_cache_that_is_full_or_that_nobody_can_write_to_is_told_before_a_run_starts(tmp_path):
    with no_room(), pytest.raises(ProviderError, match=r"write.* make room"):
        check_cache(tmp_path)
    with pytest.raises(ProviderError, match=r"write.* /proc/cache \("):
        check_cache("/proc/cache")


def test_an_answer_that_can_not_be_kept_is_given_all_the_same_and_that_is_said_once(tmp_path, capsys, caplog):
    """A file has come in the way of the cache since the run began."""
    cache, asked = tmp_path / "cache", Scripted()
    cache.touch()
    with caplog.at_level(logging.WARNING), new_log(tmp_path / "run") as log:
        view = searched(log, provider=CachedProvider(asked, ReplyCache(cache), "here"))
    assert [attempt.reply is not None for attempt in view.attempts] == [True] * CONFIG.attempts
    assert len(asked.requests) == CONFIG.attempts
    said = capsys.readouterr().err
    assert said.count("cannot write") == said.count("\n") == 1
    assert [record.levelname for record in caplog.records] == ["WARNING"]
