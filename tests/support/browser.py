"""A headless Chromium, where the machine has one; a skip with a word on how to get it elsewhere."""

import shutil
from contextlib import contextmanager

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")


@contextmanager
def started():
    """A headless Chromium; only one at a time can be had in a process."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install playwright")
    program = next(filter(None, map(shutil.which, NAMES)), None)
    if program is None:
        pytest.skip("no Chromium on this machine (Debian: apt-get install chromium)")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        try:
            yield browser
        finally:
            browser.close()


class Watched:
    """A page and what it did."""

    def __init__(self, page):
        self.page = page
        self.errors, self.requests = [], []
        page.on("console", lambda message: self.errors.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("dialog", lambda dialog: (self.errors.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        page.on("request", lambda request: self.requests.append(request.url))

    def open(self, url):
        self.page.goto(url)
        self.page.wait_for_selector("main[data-shown]")
        self.requests = [one for one in self.requests if one.partition("#")[0] != url.partition("#")[0]]
        self.requests = [one for one in self.requests if not one.startswith("data:")]

    def go(self, place):
        self.page.evaluate("place => { location.hash = place }", place)
        self.arrived(place)

    def arrived(self, place):
        self.page.wait_for_function("place => document.querySelector('main').dataset.shown === place", arg=place)
