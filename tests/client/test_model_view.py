"""How a model looks with its sizes."""

from datetime import UTC, datetime

from rich.table import Table

from longshore.client.model_view import model_rows, sizes_table
from longshore.models.model_memory import CacheType
from longshore.models.model_registry import ModelView, SizeView
from longshore.models.serving import ModelSpec

NOW = datetime(2026, 11, 1, tzinfo=UTC)


def a_model(*sizes: SizeView, seen: int = 0) -> ModelView:
    spec = ModelSpec(name="tiny", source="/m/tiny.gguf", context=8, concurrency=1, memory=100)
    return ModelView(
        spec=spec, memory=10**11, revision=1, changed_by="", changed_at=NOW, created_at=NOW,
        seen=seen, sizes=sizes,
    )  # fmt: skip


def rows(table: Table) -> list[tuple[str, ...]]:
    return list(zip(*(map(str, column.cells) for column in table.columns), strict=True))


def pairs_of(table: Table) -> dict[str, str]:
    return {row[0]: row[1] for row in rows(table)}


def test_each_size_says_where_it_has_room_now_and_where_it_would_if_nothing_ran():
    nodes = ("a", "b", "c", "d", "e", "f")
    table = sizes_table(
        a_model(
            SizeView(gpus=1, memory=100_000),
            SizeView(gpus=2, memory=50_000, when_empty=("a",)),
            SizeView(gpus=4, memory=25_000, nodes=nodes),
            SizeView(gpus=8, memory=12_500),
        )
    )
    headings = [column.header for column in table.columns]
    assert headings[2:] == ["has room now on", "has room only when empty on"]
    assert rows(table) == [
        ("2", "50GB", "–", "a"),
        ("4", "25GB", "a, b, c, d and 2 more", "–"),
    ]


def test_one_that_no_node_holds_shows_its_first_size():
    small, large = SizeView(gpus=1, memory=100_000), SizeView(gpus=2, memory=50_000)
    assert rows(sizes_table(a_model(small, large))) == [("1", "100GB", "–", "–")]


def test_what_is_stated_and_not_usual_is_told():
    usual = pairs_of(model_rows(a_model()))
    assert not {"cache type", "batch", "overhead"} & usual.keys()
    said = {"overhead": 3.0, "cache_type": CacheType.Q8_0, "batch": 1024}
    found = a_model()
    told = pairs_of(
        model_rows(found.model_copy(update={"spec": found.spec.model_copy(update=said)}))
    )
    assert [told[name] for name in ("overhead", "cache type", "batch")] == [
        "3GB of each GPU", "q8_0", "1,024",
    ]  # fmt: skip


def test_what_its_engines_took_stands_beside_what_was_reckoned():
    told = pairs_of(model_rows(a_model(seen=2_000_000_000)))
    assert told["engines took"] == "2.0GB at most"
    assert "engines took" not in pairs_of(model_rows(a_model()))
