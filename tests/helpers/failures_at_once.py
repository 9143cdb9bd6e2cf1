"""A plugin of pytest that prints failures as they happen, with their tracebacks: a run that is cut off never comes to
the end, where pytest prints them. `make test-gpu` loads it."""

import pytest


class AtOnce:
    def __init__(self, terminal: "pytest.TerminalReporter"):
        self.terminal = terminal

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.terminal.write_sep("_", f"{report.nodeid} ({report.when})", red=True)
            self.terminal.write_line(report.longreprtext)
            self.terminal.flush()


@pytest.hookimpl(trylast=True)  # after the terminal's own
def pytest_configure(config: pytest.Config) -> None:
    terminal = config.pluginmanager.get_plugin("terminalreporter")
    if terminal is not None:  # a worker of xdist has none: what it reports is printed where the workers were started
        config.pluginmanager.register(AtOnce(terminal))
