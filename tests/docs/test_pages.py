"""Every command, job file and snippet of the pages is run, and its output compared."""

from collections.abc import Iterator

import pytest

from tests.support.docs_stack import DocsStack, PageRun
from tests.support.local_stack import temporary_folder
from tests.support.pages import RUN, blocks_of, has_fences, pages
from tests.support.shown_output import differences

PAGES = [
    name
    for name in pages()
    if has_fences(name) and any(block.language in RUN for block in blocks_of(name))
]


DEAR = ("docs/first-job.md", "docs/dags.md")
"""`make faults` alone runs them: what they do is tested at commands and purchases, too."""


@pytest.fixture(scope="module")
def docs() -> Iterator[DocsStack]:
    """Starts `longshore up` with two simulated nodes and the console, 15 s; ends it, 5 s."""
    with temporary_folder() as folder, DocsStack(folder).running() as running:
        yield running


@pytest.mark.timeout(900)  # each command has five minutes
@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=pytest.mark.exhaustive if page in DEAR else ()) for page in PAGES],
)
def test_what_a_page_tells_works(page: str, docs: DocsStack):
    run = PageRun(docs, page)
    try:
        for block in blocks_of(page):
            run.run(block)
    finally:
        run.close()
    assert not run.mistakes, "\n\n" + "\n\n".join(run.mistakes)


def test_the_first_start_writes_what_the_quickstart_shows(docs: DocsStack):
    shown = next(
        command.shown
        for block in blocks_of("docs/quickstart.md")
        if block.language == "console"
        for command in block.commands
        if command.text == "longshore up"
    )
    assert differences(shown, docs.first_up) == []
