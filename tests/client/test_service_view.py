"""Tables of engines and of revisions, wide and narrow."""

from datetime import timedelta
from typing import Any

import pytest

from longshore.client.service_view import (
    replicas_table,
    revisions_table,
    served_line,
    undone_in_full,
    why_left,
)
from longshore.models.differences import differences
from longshore.models.funding import FundingTerms
from longshore.models.service import (
    ReplicaView,
    RevisionView,
    ServiceSpec,
    ServiceState,
    ServiceView,
)
from longshore.models.serving import EngineStage
from tests.support.screens import NOW, drawn

ENDPOINT = "http://127.0.0.1:45799/v1"
LONG = "answers-all-questions-of-a-department-about-its-own-documents"


def an_engine(service: str = "chat", **fields: Any) -> ReplicaView:
    usual = {
        "job_id": f"{service}-r1-7ypzo2kqda", "service": service, "model": "pilot", "revision": 1,
        "stage": EngineStage.READY, "node_id": "local-1", "gpu_indices": (0,),
        "endpoint": ENDPOINT, "leased": 757, "used": 36, "created_at": NOW,
        "ready_at": NOW - timedelta(minutes=5),
    }  # fmt: skip
    return ReplicaView.model_validate({**usual, **fields})


@pytest.mark.parametrize("of_one", [False, True])
def test_a_narrow_table_of_engines_has_their_endpoints_whole(*, of_one: bool) -> None:
    engines = (an_engine(), an_engine(idle_since=NOW))
    lines = drawn(replicas_table(engines, NOW, 80, of_one=of_one), 80)
    assert lines[0].split() == ["job", "state", "leased", "takes", "endpoint"]
    assert lines[1].split() == ["chat-r1-7ypzo2kqda", "ready", "757MB", "36MB", ENDPOINT]
    assert "ready, idle" in lines[2]
    assert lines[2].endswith(ENDPOINT)
    assert len(lines) == 3


def test_a_wide_table_of_engines_has_all() -> None:
    all_of_one = "job revision state node GPUs leased takes endpoint since"
    for width, of_one, headings in (
        (120, False, all_of_one),
        (120, True, all_of_one),
        (200, True, all_of_one),
        (200, False, all_of_one.replace("job", "job service model")),
    ):
        heading, line = drawn(replicas_table([an_engine()], NOW, width, of_one=of_one), width)
        assert heading.split() == headings.split()
        assert ENDPOINT in line
        assert line.endswith("5m ago")


@pytest.mark.parametrize("width", [80, 120, 200])
def test_long_cells_are_folded_and_take_no_other_from_the_table(width: int) -> None:
    engines = (
        an_engine(LONG, model=LONG, node_id=LONG),
        an_engine(leased=1500, estimated=1000, used=1600),
        an_engine(stage=None, endpoint="", failures=2, failed=True),
    )
    table = replicas_table(engines, NOW, width)
    heading, *lines = drawn(table, width)
    assert heading.split() == [column.header for column in table.columns]
    assert max(map(len, lines)) <= width
    begin = heading.index("endpoint")
    end = heading.index("since") if "since" in heading else width
    # Whole, below one another.
    folded = "".join(line[begin:end].strip() for line in lines)
    assert folded.replace("–", "") == 2 * ENDPOINT
    assert "(over)" in "\n".join(lines)


@pytest.mark.parametrize("width", [80, 4000])
def test_of_why_one_was_undone_a_table_has_the_first_line(width: int) -> None:
    why = "revision 2 never got ready: exit code 2\nusage: llama-server\n\x1b[2Jno such option"
    one = RevisionView(number=1, model="a", model_revision=1, created_at=NOW, undone="by hand")
    two = one.model_copy(update={"number": 2, "undone": why})
    lines = " ".join(drawn(revisions_table([two, one], NOW, width), width))
    assert "usage" not in lines
    assert "\\n" not in lines
    assert undone_in_full([two, one]) == [
        "revision 2 was undone: revision 2 never got ready: exit code 2\nusage: llama-server\n"
        "\\x1b[2Jno such option"
    ]


def test_an_engine_of_an_undone_revision_is_told_once_of_the_newest() -> None:
    usual = {"model": "a", "model_revision": 1, "created_at": NOW, "undone": "it broke\nline"}
    three = [RevisionView.model_validate({"number": each, **usual}) for each in (3, 2, 1)]
    assert undone_in_full(three) == ["revision 3 was undone: it broke\nline"]


def a_service(revision: int, replicas: int, **of_model: int) -> ServiceView:
    """Return a service whose revisions have these of its model: ``r1=2``."""
    why = "revision 2 never got ready"
    return ServiceView(
        name="web", state=ServiceState.RUNNING, revision=revision, ready=0, updated_at=NOW,
        spec=ServiceSpec(name="web", model="m", replicas=replicas),
        revisions=tuple(
            RevisionView(
                number=int(name[1:]), model="m", model_revision=number, created_at=NOW,
                undone=why if name == "r2" else "",
            )
            for name, number in of_model.items()
        ),
    )  # fmt: skip


def test_serve_says_what_else_changes_of_a_service_that_is_there() -> None:
    before = a_service(1, 3, r1=1)
    assert served_line(before.spec, 1, None, before) == "web: revision 1, model m"
    assert served_line(before.spec, 1, before, before) == "web: revision 1, model m"
    now = a_service(3, 2, r3=3, r2=3, r1=1)
    assert served_line(now.spec, 3, before, now) == (
        "web: revision 3, model m, of which revision 1 to 3, replicas 3 to 2 (an undo leaves that)"
    )
    other = a_service(2, 3, r2=1, r1=1)
    newer, older = (
        each.model_copy(update={"runtime": runtime})
        for each, runtime in zip(other.revisions or (), ("vllm", "llama.cpp"), strict=True)
    )
    before = before.model_copy(update={"revisions": (older,)})
    other = other.model_copy(update={"revisions": (newer, older)})
    assert served_line(other.spec, 2, before, other) == (
        "web: revision 2, model m, runtime llama.cpp to vllm"
    )
    scaled = a_service(1, 2, r1=1).model_copy(update={"revisions": (older,)})
    assert served_line(scaled.spec, 1, before, scaled) == (
        "web: revision 1, model m, replicas 3 to 2"
    )


def test_serve_names_each_field_that_is_another() -> None:
    before, after = a_service(1, 3, r1=1), a_service(2, 3, r2=1, r1=1)
    fields: dict[str, Any] = {
        "gpu_type": "H100", "priority": 7, "drain": "5s", "constraints": ["zone=a"], "cpus": 0.5,
        "ram": 2, "pool": "large", "funding": {"unfunded": "wait"}, "replicas": 2,
    }  # fmt: skip
    asked = ServiceSpec.model_validate({"name": "web", "model": "m", **fields})
    assert served_line(asked, 2, before, after) == (
        "web: revision 2, model m, pool default to large, priority 5 to 7, drain 1m to 5s, "
        "gpu_type none to H100, constraints none to zone=a, cpus 1 to 0.5, ram 1GB to 2GB, "
        "funding none to unfunded=wait, replicas 3 to 2 (an undo leaves that)"
    )
    terms: dict[str, Any] = {
        "wait": asked, "run": asked.model_copy(update={"funding": FundingTerms()}),
        "none": before.spec,
    }  # fmt: skip
    # As it comes back from where it is stored: with all fields set.
    stored = {
        key: ServiceSpec.model_validate_json(each.model_dump_json()) for key, each in terms.items()
    }
    for was, to, said in (
        ("wait", "run", ["funding unfunded=wait to unfunded=run"]),
        ("none", "run", ["funding none to defaults"]),
        ("wait", "none", ["funding unfunded=wait to none"]),
    ):
        found = differences(stored[was], terms[to])
        assert [each for each in found if each.startswith("funding")] == said
    other = before.spec.model_copy(update={"model": "n"})
    assert served_line(other, 2, before, after) == "web: revision 2, model n (before: m)"


def test_after_an_undo_the_stored_model_is_named_as_the_one_to_mend() -> None:
    assert why_left(a_service(1, 1, r2=3, r1=1), 2) == (
        "revision 2 never got ready\nThe model m stays stored as its revision 3, and the next "
        "change of the service has that: mend it first, with `longshore models add` or in "
        "`models` of the file."
    )
    assert why_left(a_service(1, 1, r2=1, r1=1), 2) == "revision 2 never got ready"
    assert why_left(a_service(3, 1, r3=1, r1=1), 1) == "it is at revision 3 now"


def test_a_narrow_table_of_revisions_has_room_for_why_one_was_undone() -> None:
    why = "no engine of it was ready within 10m"
    revision = RevisionView(number=2, model=LONG, model_revision=1, created_at=NOW, undone=why)
    heading, *lines = drawn(revisions_table([revision], NOW, 80), 80)
    assert heading.split() == ["revision", "model", "made", "ready", "first", "undone"]
    begin = heading.index("undone")
    assert " ".join(line[begin:].strip() for line in lines).split() == why.split()
    wide = drawn(revisions_table([revision], NOW, 140), 140)[0]
    assert "revision of the model" in wide
    assert "runtime" in wide
