import random
from contextlib import contextmanager

import pytest

from kernelwright.agent.log.events import Confirmed
from kernelwright.agent.log.store import RunLog
from kernelwright.agent.replies import NotExtracted
from kernelwright.evals.inspector.pages import LARGEST_BYTES, export
from tests.support.runs import Writer, failed, made_run, passed, problem, setting, source_of, writing

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def thousand(tmp_path_factory):
    folder = tmp_path_factory.mktemp("inspector")
    made_run(folder / "run", problems=5, attempts=200)
    export(folder / "run", folder / "report.html")
    return folder / "report.html"


@pytest.fixture(scope="module")
def seen(thousand, chromium):
    with chromium(viewport={"width": 1280, "height": 900}) as watched:
        watched.open(thousand.as_uri())
        yield watched


def test_a_file_of_a_thousand_attempts_lists_them_all_in_less_than_five_megabytes(thousand, seen):
    assert thousand.stat().st_size < LARGEST_BYTES
    seen.go("#/")
    assert seen.page.locator("#attempts tbody tr").count() == 1000


def test_a_search_and_an_outcome_filter_the_attempts(seen):
    seen.go("#/")
    seen.page.fill("#search", "problem_1")
    seen.page.select_option("#outcome", "failed at build")
    texts = seen.page.locator("#attempts tbody tr").all_inner_texts()
    assert texts and all("problem_1" in text and "failed at build" in text for text in texts)


def test_an_attempt_opens_and_shows_source_difference_and_samples(seen):
    number = first_with_parent(seen)
    seen.go(f"#/a/problem_0/{number}")
    page = seen.page
    assert "class ModelNew" in page.locator("[data-source=candidate]").inner_text()
    page.locator("summary", has_text="Difference from parent").click()
    page.wait_for_selector(".diff tr.added")
    assert page.locator("circle.sample").count() > 20


def first_with_parent(seen):
    seen.go("#/p/problem_0")
    rows = seen.page.locator("#attempts tbody tr").all()
    cells = (row.locator("td").all_inner_texts() for row in rows)
    return next(texts[0] for texts in cells if texts[2] and texts[4] == "passed")


def test_a_problem_shows_its_plots_and_its_tree(seen):
    seen.go("#/p/problem_2")
    assert seen.page.locator("svg.plot").count() >= 4
    assert seen.page.locator("svg.tree circle").count() == 200


def test_the_keys_open_a_row_and_lead_back(seen):
    seen.go("#/")
    for key in ("j", "j", "Enter"):
        seen.page.keyboard.press(key)
    seen.arrived("#/p/problem_1")
    seen.page.keyboard.press("u")
    seen.arrived("#/")


def test_a_permalink_opens_its_attempt_and_line(thousand, chromium):
    with chromium() as watched:
        watched.open(f"{thousand.as_uri()}#/a/problem_3/7/L5")
        watched.page.wait_for_selector("[data-line='5']")
        assert watched.page.locator("h1").inner_text().startswith("Attempt 7")


def test_the_dark_theme_can_be_chosen(seen):
    seen.page.evaluate("document.documentElement.dataset.theme = 'light'")
    light = seen.page.evaluate("getComputedStyle(document.body).backgroundColor")
    seen.page.click("#theme")
    assert seen.page.evaluate("getComputedStyle(document.body).backgroundColor") != light


@pytest.mark.parametrize("place", ["#/", "#/p/problem_0", "#/a/problem_0/3"])
def test_a_phone_needs_no_sideways_scrolling(thousand, place, chromium):
    with chromium(viewport={"width": 390, "height": 800}) as watched:
        watched.open(f"{thousand.as_uri()}{place}")
        assert watched.page.evaluate("document.documentElement.scrollWidth") <= 390


def test_nothing_was_complained_of_and_nothing_asked_of_the_network(seen):
    for place in ("#/", "#/p/problem_4", "#/a/problem_4/2", "#/a/nothing/1", "#/p/nothing"):
        seen.go(place)
    assert (seen.errors, seen.requests) == ([], [])


MARK = "window.hurt = true"
HOSTILE = f"""</script><script>{MARK}</script><img src=x onerror="{MARK}"><svg onload="{MARK}">
<iframe srcdoc="<script>parent.{MARK}</script>"></iframe><a href="javascript:{MARK}">x</a>
<style>body {{ display: none }}</style><base href="https://example.com/"><!--
"""


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    """A run whose every text from outside tries to become part of the page, and one reply of a 5 MB line."""
    folder = tmp_path_factory.mktemp("hostile")
    rng = random.Random(0)
    with RunLog.create(folder / "run", [problem("one", family=HOSTILE)], setting(model=HOSTILE)) as log:
        writer = Writer(log, "one", rng)
        source = f'"""{HOSTILE}"""\n{source_of(1, rng)}'
        writer.attempt(passed(1.5), reply=f"<think>{HOSTILE}</think>{HOSTILE}", source=source)
        writer.attempt(failed("build", HOSTILE, log=HOSTILE), reply=HOSTILE, parent=1, source=source + HOSTILE)
        writer.attempt(None, reply=HOSTILE, parent=1, why=NotExtracted(kind="no_code", detail=HOSTILE))
        writer.attempt(failed(), reply="x" * 5_000_000, parent=1)
        writer.stop(HOSTILE)
    export(folder / "run", folder / "report.html")
    return folder / "report.html"


def test_hostile_text_stays_text(hostile, chromium):
    with chromium() as watched:
        watched.open(hostile.as_uri())
        for place in ("#/p/one", "#/a/one/1", "#/a/one/2", "#/a/one/3"):
            watched.go(place)
            for summary in watched.page.locator("summary").all():
                summary.click()
        assert watched.page.locator("main iframe, main img, main script, main style, main base").count() == 0
        assert watched.page.evaluate("window.hurt") is None
        assert (watched.errors, watched.requests) == ([], [])


def test_hostile_text_is_shown_as_it_was_written_and_a_line_of_five_megabytes_in_part(hostile, chromium):
    with chromium() as watched:
        watched.open(hostile.as_uri())
        watched.go("#/a/one/2")
        assert '<img src=x onerror="window.hurt = true">' in watched.page.locator("main").inner_text()
        watched.go("#/a/one/4")
        assert "more characters" in watched.page.locator("main").inner_text()
        assert watched.errors == []


def test_a_script_that_got_into_the_page_would_not_run(hostile, chromium):
    with chromium() as watched:
        watched.open(hostile.as_uri())
        tried = """() => { const one = document.createElement("script"); try { one.text = "window.hurt = 1" } catch {}
            document.body.append(one); try { document.body.innerHTML = "<p>x" } catch (error) { return error.name } }"""
        assert watched.page.evaluate(tried) == "TypeError"
        assert watched.page.evaluate("window.hurt") is None


def test_a_file_is_the_same_for_the_same_run(tmp_path):
    made_run(tmp_path / "run", problems=1, attempts=5)
    for name in ("a.html", "b.html"):
        export(tmp_path / "run", tmp_path / name)
    assert (tmp_path / "a.html").read_bytes() == (tmp_path / "b.html").read_bytes()


@pytest.fixture
def page_of_one(tmp_path, chromium):
    """Opens the page of the attempt of a run with a single one, as exported."""

    @contextmanager
    def opened(**attempt):
        with writing(tmp_path / "run") as writer:
            writer.attempt(**attempt)
        export(tmp_path / "run", tmp_path / "report.html")
        with chromium() as watched:
            watched.open(f"{(tmp_path / 'report.html').as_uri()}#/a/one/1")
            yield watched

    return opened


def test_a_line_of_the_compile_log_leads_to_the_line_that_it_quotes(page_of_one):
    source = source_of(1, random.Random(0)).replace("// attempt 1", "int i = blockDim.x;")
    with page_of_one(verdict=failed("build"), source=source) as watched:
        watched.page.locator(".failure button.link").first.click()
        assert watched.page.locator("li.pointed").inner_text().strip() == "int i = blockDim.x;"


def test_a_traceback_leads_to_the_candidates_line(page_of_one):
    log = 'Traceback (most recent call last):\n  File "candidate.py", line 2, in <module>\nImportError: no'
    with page_of_one(verdict=failed("load", log=log)) as watched:
        watched.page.locator(".failure button.link").first.click()
        assert "load_inline" in watched.page.locator("li.pointed").inner_text()


def test_a_second_verdict_stands_beside_the_numbers_of_the_first(tmp_path, chromium):
    with writing(tmp_path / "run", passed(3.0, spread=0.0)) as writer:
        writer.put(Confirmed(problem="one", attempt=1, verdict=passed(2.0, spread=0.0)))
    export(tmp_path / "run", tmp_path / "report.html")
    with chromium() as watched:
        watched.open(f"{(tmp_path / 'report.html').as_uri()}#/a/one/1")
        counted, first = watched.page.locator("dl.facts").first.inner_text().split("first verdict")
        assert "2.00 \u00d7 [2.00, 2.00]" in counted and "3.00" not in counted
        assert "3.00 \u00d7 [3.00, 3.00]" in first


def test_reasoning_is_folded(page_of_one):
    with page_of_one(verdict=passed(1.2), reply="<think>a long thought</think>the answer") as watched:
        assert "a long thought" not in watched.page.locator("main").inner_text()
        watched.page.locator("summary", has_text="14 characters").click()
        watched.page.locator("main").get_by_text("a long thought").wait_for(timeout=10_000)


def test_a_file_that_would_be_too_large_cuts_its_longest_texts_and_says_so(tmp_path, page_of_one):
    with page_of_one(verdict=passed(1.2), reply=random.Random(0).randbytes(6_000_000).hex()) as watched:
        assert (tmp_path / "report.html").stat().st_size < LARGEST_BYTES
        assert watched.errors == []
