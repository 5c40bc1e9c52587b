"""A plugin of the test suite: which tests a parallel worker takes, and in what order.

A worker takes a module after the other, and modules that share a costly fixture one after the
other too. What takes longest begins: that mostly waits, and the others compute meanwhile.
"""

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling

TOGETHER = ("tests/console/", "tests/observability/")
"""Folders of which one worker takes all: a console and a browser, an installation."""
LONGEST = (
    *TOGETHER, "tests/activities/test_compiler_warmup.py", "tests/buying/",
    "tests/docs/test_pages.py", "tests/e2e/", "tests/faults/", "tests/workers/",
)  # fmt: skip
"""Where most of the time of a run goes (docs/development.md)."""


class ByFolderOrFile(LoadFileScheduling):
    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return next((folder for folder in TOGETHER if file.startswith(folder)), file)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadFileScheduling | None:
    return ByFolderOrFile(config, log) if config.getoption("dist") == "loadfile" else None


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let each of the longest modules be followed by one of the others."""
    modules: dict[str, list[pytest.Item]] = {}
    for item in items:
        modules.setdefault(item.nodeid.partition("::")[0], []).append(item)
    long = [name for name in modules if name.startswith(LONGEST)]
    short = [name for name in modules if not name.startswith(LONGEST)]
    order: list[str] = []
    for number, name in enumerate(long):
        order += [name, *short[number : number + 1]]
    order += short[len(long) :]
    items[:] = [item for name in order for item in modules[name]]
