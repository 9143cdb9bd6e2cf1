"""Shared settings of the library's tests."""

import os

import pytest


@pytest.fixture(scope="session")
def draws():
    """How many draws a test of rare failures makes; GUMTRACE_DRAWS=1000000 for the full count."""
    return int(os.environ.get("GUMTRACE_DRAWS", "20000"))


def pytest_terminal_summary(terminalreporter):
    """That no browser was there must not go unnoticed."""
    skipped = [report for report in terminalreporter.stats.get("skipped", []) if "Chromium" in str(report.longrepr)]
    if skipped:
        words = f"***  No Chromium: {len(skipped)} tests of the explorer were skipped. Debian: apt-get install chromium"
        terminalreporter.write_line(words, yellow=True, bold=True)


# The explorer in a browser --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def chrome():
    from exploring import browser

    with browser() as running:
        yield running


@pytest.fixture(scope="module")
def served():
    """The explorer's server."""
    from exploring import serving

    from gumtrace.explore.server import Server

    with serving(Server(0)) as server:
        yield server


@pytest.fixture
def visit(chrome):
    """visit(url, path, **settings of the context). Nothing may go wrong there, nor anything but `url` be asked."""
    from explored_page import PATIENCE, Explored

    contexts, wrong = [], []

    def go(url, path="", **settings):
        contexts.append(chrome.new_context(**{"viewport": {"width": 1280, "height": 900}, **settings}))
        page = contexts[-1].new_page()
        page.set_default_timeout(1000 * PATIENCE)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("console", lambda line: wrong.append(line.text) if line.type in ("error", "warning") else None)
        page.on("request", lambda asked: None if asked.url.startswith(url) else wrong.append(asked.url))
        page.goto(url + path)
        page.wait_for_selector(".gx[data-ready]")
        return Explored(page)

    go.wrong = wrong
    yield go
    for context in contexts:
        context.close()
    assert wrong == []


@pytest.fixture
def explored(visit, served):
    return visit(served.url)
