from contextlib import contextmanager

import pytest

from tests.support.browser import Watched, started


@pytest.fixture(scope="module")
def browser():
    with started() as browser:
        yield browser


@pytest.fixture(scope="module")
def chromium(browser):
    """Opens a page of its own, with all that it complained of and asked the network for; as a context."""

    @contextmanager
    def page(**context):
        found = browser.new_page(**context)
        try:
            yield Watched(found)
        finally:
            found.close()

    return page
