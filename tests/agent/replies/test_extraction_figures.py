"""The figures of extraction from replies that were cut, and that parsing leaves the process's warnings alone."""

import ast
import threading
import warnings
from pathlib import Path

import pytest

from kernelwright.agent.replies import Extraction, Parser, extract

REPLIES = {path.stem: path.read_text() for path in sorted((Path(__file__).parent / "texts").glob("*.md"))}
STEP = 50
ODD = 'import torch\n\n\nclass ModelNew:\n    pattern = "\\d{}"\n'


def said_of_escapes(seen):
    """What parsing warned of; not what is said of a file left open elsewhere that is collected in that time."""
    return [str(warning.message) for warning in seen if "escape" in str(warning.message)]


def cuts():
    """Each reply cut at every 50th character, with its whole source and whether the last fence is closed by then."""
    for reply in REPLIES.values():
        whole, end = extract(reply), reply.rindex("\n```") + len("\n```")
        assert isinstance(whole, Extraction)
        for length in [*range(STEP, len(reply), STEP), len(reply)]:
            yield extract(reply[:length], truncated=True), whole.source, length >= end


def test_there_are_five_replies_and_a_hundred_cuts_of_which_none_is_accepted_with_a_wrong_source(record_property):
    assert (len(REPLIES), len(list(cuts())) >= 100) == (5, True)
    wrong = [found for found, source, _ in cuts() if isinstance(found, Extraction) and found.source != source]
    record_property("wrong accepts", len(wrong))
    assert wrong == []


def test_of_the_recoverable_cuts_98_in_100_give_their_source(record_property):
    outcomes = [isinstance(found, Extraction) and found.source == source for found, source, whole in cuts() if whole]

    record_property("recovered", f"{sum(outcomes)} of {len(outcomes)}")
    assert len(outcomes) >= 5
    assert sum(outcomes) / len(outcomes) >= 0.98


def test_a_reply_with_an_odd_escape_is_read_without_a_warning():
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        Parser().read(ODD.format("a"))

    assert said_of_escapes(seen) == []


def test_the_same_source_parsed_by_python_alone_is_warned_of():
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        ast.parse(ODD.format("e"))

    assert len(said_of_escapes(seen)) == 1


def test_a_reply_with_an_odd_escape_is_read_where_warnings_are_errors():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert Parser().is_whole(ODD.format("b"))


def test_other_code_still_gets_its_warnings():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Parser().read(ODD.format("c"))
        with pytest.raises(SyntaxError):
            ast.parse(ODD.format("d"))


def test_parsing_in_many_threads_gives_no_warning_and_piles_up_no_filters():
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        before = len(warnings.filters)
        threads = [
            threading.Thread(target=lambda: [Parser().read(ODD.format(number)) for number in range(200)])
            for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert (said_of_escapes(seen), len(warnings.filters) - before <= 4) == ([], True)
