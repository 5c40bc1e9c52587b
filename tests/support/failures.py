"""A test that fails is named at once: a run of all tests takes half an hour, or longer."""

import pytest


class _Named:
    def __init__(self, terminal: pytest.TerminalReporter) -> None:
        self._terminal = terminal

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._terminal.write(f"\nFAILED {report.nodeid} ({report.when})\n", red=True)


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """Register it with whoever writes to the terminal: not with the workers of a parallel run."""
    terminal = config.pluginmanager.get_plugin("terminalreporter")
    if terminal is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Named(terminal), "named-failures")
