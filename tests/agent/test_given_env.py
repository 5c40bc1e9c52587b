"""A job file sets no variable by which Longshore tells a process something."""

import re

from longshore.activities.node.given_env import OF_DATA, OWN, given_env
from tests.agent.conftest import LocalNode
from tests.support.local_stack import ROOT

FORGED = {"LONGSHORE_RESUME": "1", "LONGSHORE_CHECKPOINT_STEP": "99", "LONGSHORE_DATA_DIR": "/"}
SAYS = 'echo "${LONGSHORE_RESUME:-no} ${LONGSHORE_CHECKPOINT_STEP:-no} ${LONGSHORE_DATA_DIR:-no}"'


def test_the_names_are_those_of_the_pages() -> None:
    pages = [(ROOT / "docs" / name).read_text() for name in ("job-file.md", "topology.md")]
    rows = [line for page in pages for line in page.splitlines() if line.startswith("| `")]
    named = set(
        re.findall(r"`(LONGSHORE_[A-Z_]+)", "\n".join(row.split(" | ")[0] for row in rows))
    )
    assert {name for name in named if not name.startswith(OF_DATA)} == OWN


def test_settings_of_longshore_may_be_given() -> None:
    settings = {"LONGSHORE_DATABASE_URL": "postgresql://", "MINE": "1"}
    assert given_env(settings | FORGED) == settings


async def test_a_first_attempt_goes_on_from_nothing(box: LocalNode) -> None:
    run = box.start(SAYS, env=FORGED, checkpoint={"folder": "c"})
    assert (await run.done).exit_code == 0
    assert box.output(run.record.key) == "no no no\n"
