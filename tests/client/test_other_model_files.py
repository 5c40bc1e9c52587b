"""Other files of a model at the same place are a change, and files that are away are none."""

from pathlib import Path

import pytest

from longshore.models.model_registry import ModelsEdit, ModelView
from tests.client.conftest import Command
from tests.support.gguf_models import Model, write, write_adapter
from tests.support.safetensors_models import write as write_folder


async def test_another_adapter_at_the_same_place_is_a_change(
    longshore: Command, tmp_path: Path
) -> None:
    source = write(Model(), tmp_path / "model.gguf")
    adapter = write_adapter(tmp_path / "formal.gguf")
    asked = ("models", "add", "polite", "--source", str(source), "--adapter", f"formal={adapter}")
    assert (await longshore(*asked)).code == 0
    assert (await longshore(*asked)).out == "Nothing is changed.\n"
    write_adapter(adapter, strength=2.0)
    changed = await longshore(*asked)
    others = "those of the adapter formal, which are others of the same shape (revision 2)"
    assert changed.out.splitlines()[0] == f"model polite is changed: {others}"
    assert (await longshore(*asked)).out == "Nothing is changed.\n"
    view = ModelView.model_validate_json(
        (await longshore("models", "show", "polite", "--json")).out
    )
    assert view.facts is not None
    assert view.facts.files_since == 2


async def test_another_adapter_in_a_folder_is_a_change(longshore: Command, tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "qwen")
    adapter = tmp_path / "formal"
    (adapter / "adapter_notes").mkdir(parents=True)
    (adapter / "adapter_config.json").write_text("{}")
    (adapter / "adapter_model.safetensors").write_bytes(b"1" * 10_000)
    asked = (
        "models", "add", "in-folder", "--runtime", "vllm", "--memory", "9GB", "--source",
        str(folder), "--adapter", f"formal={adapter}",
    )  # fmt: skip
    made = await longshore(*asked)
    assert made.code == 0, made.err
    assert (await longshore(*asked)).out == "Nothing is changed.\n"
    (adapter / "adapter_model.safetensors").write_bytes(b"2" * 10_000)
    assert "those of the adapter formal" in (await longshore(*asked)).out


async def test_what_is_known_stays_while_all_files_are_away(
    longshore: Command, tmp_path: Path
) -> None:
    """Else a training meanwhile is not seen, and what their absence says is a change."""
    source = write(Model(context=2048), tmp_path / "model.gguf", 1)
    adapter = write_adapter(tmp_path / "formal.gguf")
    asked = (
        "models", "add", "all-away", "--memory", "3GB", "--source", str(source), "--adapter",
        f"formal={adapter}", "--json",
    )  # fmt: skip
    made = ModelsEdit.model_validate_json((await longshore(*asked)).out).models[0]
    assert made.facts is not None
    source.rename(tmp_path / "elsewhere.gguf")
    adapter.rename(tmp_path / "other.gguf")
    away = ModelsEdit.model_validate_json((await longshore(*asked)).out)
    assert away.changes == ()
    pinned = ModelsEdit.model_validate_json((await longshore(*asked, "--pinned")).out)
    assert pinned.changes[0].fields == ("pinned false to true",)
    assert pinned.models[0].facts == made.facts
    write(Model(context=2048), source, 2)
    write_adapter(adapter, strength=2.0)
    back = ModelsEdit.model_validate_json((await longshore(*asked, "--pinned")).out)
    assert back.changes[0].fields == (
        "its files, those of the adapter formal, which are others of the same shape",
    )
    assert back.models[0].facts is not None
    assert back.models[0].facts.files_since == 3


async def test_an_adapter_that_is_away_is_no_change(longshore: Command, tmp_path: Path) -> None:
    source = write(Model(), tmp_path / "model.gguf")
    asked = ["models", "add", "one-away", "--source", str(source)]
    for name in ("formal", "terse"):
        asked += ["--adapter", f"{name}={write_adapter(tmp_path / f'{name}.gguf')}"]
    made = ModelsEdit.model_validate_json((await longshore(*asked, "--json")).out).models[0]
    (tmp_path / "terse.gguf").unlink()
    assert (await longshore(*asked)).out == "Nothing is changed.\n"
    pinned = await longshore(*asked, "--pinned", "--json")
    after = ModelsEdit.model_validate_json(pinned.out).models[0]
    assert (after.facts, after.memory) == (made.facts, made.memory)


async def test_of_files_elsewhere_nothing_is_known(longshore: Command, tmp_path: Path) -> None:
    source = write(Model(), tmp_path / "model.gguf")
    asked = ("models", "add", "moved", "--memory", "3GB", "--json", "--source")
    assert (await longshore(*asked, str(source))).code == 0
    moved = ModelsEdit.model_validate_json((await longshore(*asked, "/nowhere/m.gguf")).out)
    assert moved.models[0].facts is None


@pytest.mark.parametrize("adapters", [0, 1])
async def test_memory_of_adapters_counts_once_where_the_model_is_away(
    longshore: Command, tmp_path: Path, adapters: int
) -> None:
    source = write(Model(), tmp_path / "model.gguf")
    adapter = write_adapter(tmp_path / "formal.gguf")
    asked = ("models", "add", f"once-{adapters}", "--memory", "3GB", "--source", str(source))
    given = ("--adapter", f"formal={adapter}")
    edit = ModelsEdit.model_validate_json((await longshore(*asked, *given, "--json")).out)
    source.unlink()
    edit_ = await longshore(*asked, *given * adapters, "--pinned", "--json")
    before, after = edit.models[0].facts, ModelsEdit.model_validate_json(edit_.out).models[0].facts
    assert before is not None
    assert after is not None
    less = 0 if adapters else before.memory.adapters
    assert before.memory.adapters > 0
    assert after.memory.total == before.memory.total - less


async def test_an_adapter_that_comes_later_is_named_as_known(
    longshore: Command, tmp_path: Path
) -> None:
    """What it takes may be too little to be seen in the size of the model."""
    source = write(Model(), tmp_path / "model.gguf")
    places = {name: tmp_path / f"{name}.gguf" for name in ("formal", "terse")}
    asked = ["models", "add", "later", "--source", str(source)]
    for name, place in places.items():
        asked += ["--adapter", f"{name}={place}"]
    assert (await longshore(*asked)).code == 0
    write_adapter(places["formal"])
    one = await longshore(*asked)
    said = "model later is changed: the adapter formal is known now (revision 2)"
    assert one.out.splitlines()[0] == said
    write_adapter(places["formal"], strength=2.0)
    write_adapter(places["terse"])
    both = ModelsEdit.model_validate_json((await longshore(*asked, "--json")).out)
    assert both.changes[0].fields == (
        "the adapter terse is known now",
        "those of the adapter formal, which are others of the same shape",
    )
