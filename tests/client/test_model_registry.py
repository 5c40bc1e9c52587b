"""`longshore models add|list|show|rm` and `runtimes`: what is stored, and what is refused."""

import asyncio
import hashlib
import json
import os
import threading
from pathlib import Path

import pytest
from sqlalchemy import text

from longshore.activities.database import Database
from longshore.activities.serving import model_facts
from longshore.client.model_registry import examined
from longshore.models.errors import StoreError
from longshore.models.model_registry import ModelsEdit, ModelView, RuntimeView
from longshore.models.runtimes import BUILT_IN
from longshore.models.serving import ModelSpec
from tests.client.conftest import Command
from tests.support.gguf_models import Model, write, write_adapter
from tests.support.local_stack import free_ports
from tests.support.safetensors_models import QWEN
from tests.support.safetensors_models import write as write_folder
from tests.support.served import serving

_OWN = """
name: own
command: [serve, "{model}", --port, "{port}"]
"""


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Writes a model, adapters, and a folder of safetensors files; 0.1 s."""
    folder = tmp_path_factory.mktemp("models")
    write(Model(context=2048), folder / "tiny.gguf")
    write_adapter(folder / "formal.gguf")
    write_folder(folder / "qwen")
    return folder


async def test_a_model_from_the_first_word_to_its_removal(longshore: Command, files: Path):
    source = str(files / "tiny.gguf")
    asked = ("models", "add", "first", "--source", source, "--concurrency", "4")
    dry = await longshore(*asked, "--dry-run")
    assert dry.code == 0, dry.err
    assert dry.out.splitlines()[0] == "would: model first is made (revision 1)"
    assert (await longshore("models", "show", "first")).code == 66
    made = await longshore(*asked)
    assert made.code == 0, made.err
    lines = [line.split() for line in made.out.splitlines()]
    assert lines[0] == ["model", "first", "is", "made", "(revision", "1)"]
    # The context is what the model was trained on, which is less than the usual one.
    assert lines[2][:2] == ["first", "llama.cpp"]
    assert lines[2][3:] == ["2,048", "4", "1", source]
    again = await longshore(*asked)
    assert again.out == "Nothing is changed.\n"

    less = await longshore(*asked, "--overhead", "100MB", "--dry-run")
    changes = "overhead 750MB to 100MB (revision 2)"
    assert less.out.splitlines()[0] == f"would: model first is changed: {changes}"

    longer = (*asked[:-1], "3", "--context", "1000", "--pinned")
    would = await longshore(*longer, "--dry-run")
    changes = "context 2048 to 1000; concurrency 4 to 3; pinned false to true (revision 2)"
    assert would.out.splitlines()[0] == f"would: model first is changed: {changes}"
    changed = await longshore(*longer, "--json")
    edit = ModelsEdit.model_validate_json(changed.out)
    assert [(each.name, each.edit, each.revision) for each in edit.changes] == [
        ("first", "changed", 2)
    ]
    listed = await longshore("models", "list", "--json")
    (first,) = [each for each in json.loads(listed.out) if each["spec"]["name"] == "first"]
    view = ModelView.model_validate(first)
    assert view == edit.models[0]
    assert view.facts is not None
    assert view.memory == view.facts.memory.total > 0
    assert (view.facts.heads, view.facts.key_heads, view.facts.layers) == (4, 2, 2)
    assert (view.facts.context, view.facts.memory.cells) == (2048, 1024)
    assert view.changed_at > view.created_at

    shown = await longshore("models", "show", "first")
    rows = dict(line.split(maxsplit=1) for line in shown.out.splitlines())
    assert rows["revision"].startswith("2, 20")
    assert "4 attention heads, 2 of KV, trained on 2,048 tokens" in rows["says"]
    assert rows["total"].split()[-4:] == ["llama,", "on", "one", "GPU"]
    close = await longshore("models", "show", "firs")
    assert "there is no model 'firs'; did you mean first?" in close.err

    assert (await longshore("models", "rm", "first")).out == "model first is removed\n"
    gone = await longshore("models", "rm", "first")
    assert gone.code == 66
    assert "there is no model 'first'" in gone.err


async def test_another_file_at_the_same_place_is_a_change(longshore: Command, tmp_path: Path):
    source = write(Model(), tmp_path / "model.gguf")
    asked = ("models", "add", "replaced", "--source", str(source))
    assert (await longshore(*asked)).code == 0
    write(Model(layers=4), source)
    changed = await longshore(*asked)
    assert "model replaced is changed: what its files say: " in changed.out
    assert "(revision 2)" in changed.out


async def test_other_weights_at_the_same_place_are_a_change(
    longshore: Command, tmp_path: Path, control: Database
):
    source = write(Model(), tmp_path / "model.gguf", 1)
    asked = ("models", "add", "trained", "--source", str(source))
    assert (await longshore(*asked)).code == 0
    os.utime(source, (1, 1))
    assert (await longshore(*asked)).out == "Nothing is changed.\n", "the same, copied"
    write(Model(), source, 2)
    changed = await longshore(*asked)
    others = "its files, which are others of the same shape (revision 2)"
    assert changed.out.splitlines()[0] == f"model trained is changed: {others}"
    assert (await longshore(*asked)).out == "Nothing is changed.\n"
    async with control.transaction() as connection:
        await connection.execute(
            text("UPDATE models SET facts = facts - 'files' - 'files_since' WHERE name='trained'")
        )
    write(Model(), source, 3)
    again = await longshore(*asked)
    assert again.out == "Nothing is changed.\n", "a version before this did not look at them"


async def test_a_store_that_is_away_for_a_moment_hides_no_change_of_files(
    longshore: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def away(*args: object) -> str:
        raise StoreError("away")

    source = write(Model(), tmp_path / "model.gguf", 1)
    asked = ("models", "add", "back-soon", "--source", str(source))
    assert (await longshore(*asked)).code == 0
    with monkeypatch.context() as patch:
        patch.setattr(model_facts, "sampled", away)
        changed = await longshore(*asked, "--context", "512")
    assert "(revision 2)" in changed.out
    write(Model(), source, 2)
    changed = await longshore(*asked, "--context", "512")
    assert "its files, which are others of the same shape (revision 3)" in changed.out


async def test_facts_that_only_a_newer_version_knows_are_ignored(
    longshore: Command, files: Path, control: Database
):
    asked = ("models", "add", "newer", "--source", str(files / "tiny.gguf"))
    assert (await longshore(*asked)).code == 0
    more = """UPDATE models SET facts = facts || '{"x": 1}' WHERE name = 'newer'"""
    async with control.transaction() as connection:
        await connection.execute(text(more))
    assert (await longshore("models", "show", "newer")).code == 0
    assert (await longshore(*asked)).out == "Nothing is changed.\n"


async def test_a_file_of_several_models(longshore: Command, files: Path, tmp_path: Path):
    file = tmp_path / "models.yaml"
    file.write_text(f"""
models:
  - {{name: a, source: {files}/tiny.gguf, context: 512, start_limit: 2m}}
  - name: b
    source: {files}/tiny.gguf
    runtime: ollama
    args: [--verbose]
""")
    made = await longshore("models", "add", str(file), "--json")
    edit = ModelsEdit.model_validate_json(made.out)
    assert [each.name for each in edit.changes] == ["a", "b"]
    a, b = (each.spec for each in edit.models)
    assert (a.context, a.concurrency, b.context, b.concurrency) == (512, 1, 2048, 2)
    file.write_text(f"""
name: a
source: {files}/tiny.gguf
concurency: 2
---
name: b
source: tiny.gguf
memory: much
---
name: a
source: /a.gguf
""")
    wrong = await longshore("models", "add", str(file))
    assert wrong.code == 65
    told = wrong.err.replace(str(file), "models.yaml")
    assert "models.yaml:4: concurency: no such field; did you mean concurrency?" in told
    assert "models.yaml:8: memory: expected a size such as 80GB" in told
    file.write_text("models:\n  - {name: a, source: /a}\n  - {name: a, source: /b}\n")
    twice = await longshore("models", "add", str(file))
    assert "models.yaml:3: models[1].name: a is in this file already" in twice.err.replace(
        str(file), "models.yaml"
    )
    # All or none: the second one is refused for its file.
    file.write_text(f"""
models:
  - {{name: c, source: {files}/tiny.gguf}}
  - {{name: d, source: {files}/formal.gguf}}
""")
    refused = await longshore("models", "add", str(file))
    assert refused.code == 65
    assert "model d: source: 'formal.gguf' is an adapter, and no model" in refused.err
    assert (await longshore("models", "show", "c")).code == 66


@pytest.mark.parametrize(
    ("options", "code", "why"),
    [
        (("--context", "0"), 65, "--context 0: context: must be at least 1, got 0"),
        (("--context", "many"), 65, "context: must be a whole number, got many"),
        (("--gpus", "2", "--runtime", "own-one"), 66, "bad: runtime: there is no runtime own-one"),
        (("--runtime", "lama.cpp"), 66, "did you mean llama.cpp?"),
        (("--cache-type", "q9"), 65, "cache_type: must be f32, "),
        (("--cache-type", "q8_0"), 65, "a head of this model has 16, which is no multiple: take"),
        (("--sha256", "0" * 64), 65, f"sha256: is {'0' * 64}, and the file has "),
        (("--sha256", "abc"), 65, "sha256: must be 64 digits and letters from a to f, got abc"),
        (("--adapter", "formal"), 2, "--adapter formal: give NAME=SOURCE"),
        (("--adapter", "a={tiny}"), 65, "tiny.gguf is no adapter: it has no general.type"),
        (("--adapter", "a={kind}"), 65, "kind.gguf is no adapter: its general.type is model"),
        (("--adapter", "a={form}"), 65, "form.gguf is no LoRA adapter: its adapter.type is ia3"),
        (("--adapter", "a={gemma}"), 65, "of the architecture gemma, and the model is llama"),
        (("--adapter", "a={vague}"), 65, "that names no architecture, and the model is llama"),
        (("--adapter", "a={short}"), 65, "adapters.a: short.gguf cannot be read as a GGUF file"),
        (("--runtime", "ollama", "--adapter", "a={formal}"), 65, "the runtime ollama takes none"),
        (("--overhead", "-1"), 65, "--overhead -1: overhead: "),
        (("--gpus", "17"), 65, "gpus: is 17: 16 are the most"),
    ],
)
async def test_options_that_cannot_be_are_refused(
    longshore: Command, files: Path, options: tuple[str, ...], code: int, why: str
):
    write_adapter(files / "kind.gguf", kind="model")
    write_adapter(files / "form.gguf", form="ia3")
    write_adapter(files / "gemma.gguf", "gemma")
    write_adapter(files / "vague.gguf", "")
    (files / "short.gguf").write_bytes((files / "formal.gguf").read_bytes()[:-1])
    names = {name: files / f"{name}.gguf" for name in
             ("tiny", "kind", "form", "gemma", "vague", "short", "formal")}  # fmt: skip
    given = [each.format(**names) if "{" in each else each for each in options]
    ran = await longshore("models", "add", "bad", "--source", str(files / "tiny.gguf"), *given)
    assert ran.code == code, ran.err
    assert why in ran.err.replace("'", "")
    assert (await longshore("models", "show", "bad")).code == 66


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("{cut}", "cut.gguf cannot be read as a GGUF file: its tensors end at byte"),
        ("{lying}", "lying.gguf cannot be read as a GGUF file: its number of tensors is"),
        ("{formal}", "formal.gguf is an adapter, and no model: name the model that it is for"),
        ("{text}", "text.gguf cannot be read as a GGUF file: it begins with"),
        ("{split}", "the model has 2 files, and part-00002-of-00002.gguf is not there"),
        ("{second}", "part-00002-of-00002.gguf is not the first file of its model: name "),
        ("{folder}", "is a folder without .safetensors files: of a GGUF model name the .gguf"),
        ("/nowhere/a.gguf", "is not on this machine: say with memory (--memory) how much"),
        ("a.gguf", "source: a.gguf is a path, and has to begin with /, ~/ or ./"),
        ("ftp://host/a.gguf", "source: ftp://host/a.gguf is no place of these: s3://"),
    ],
)
async def test_files_that_cannot_be_served_are_refused(
    longshore: Command, files: Path, tmp_path: Path, source: str, why: str
):
    whole = (files / "tiny.gguf").read_bytes()
    made = {"cut": whole[:-1], "lying": whole[:8] + b"\xff" * 5 + bytes(3) + whole[16:],
            "text": b"no model"}  # fmt: skip
    for name, raw in made.items():
        (tmp_path / f"{name}.gguf").write_bytes(raw)
    (tmp_path / "part-00001-of-00002.gguf").write_bytes(whole)
    (tmp_path / "folder").mkdir()
    places = {name: tmp_path / f"{name}.gguf" for name in made}
    places |= {"split": tmp_path / "part-00001-of-00002.gguf", "folder": tmp_path / "folder"}
    places |= {"second": tmp_path / "part-00002-of-00002.gguf"}
    places["formal"] = files / "formal.gguf"
    ran = await longshore("models", "add", "bad", "--source", source.format(**places))
    assert ran.code == 65, ran.err
    assert why in ran.err.replace("'", "")


async def test_a_path_of_nodes_alone_wants_its_memory_stated(longshore: Command):
    asked = ("models", "add", "remote", "--source", "/nowhere/a.gguf", "--memory", "2GB")
    made = await longshore(*asked, "--sha256", "0" * 64, "--adapter", "x=/nowhere/x.gguf")
    assert made.code == 0, made.err
    assert "source: /nowhere/a.gguf is not on this machine: nothing of it was looked" in made.err
    assert "adapters.x: /nowhere/x.gguf is not on this machine: it was not looked at" in made.err
    shown = json.loads((await longshore("models", "show", "remote", "--json")).out)
    assert (shown["memory"], shown["facts"]) == (2_000_000_000, None)
    assert (shown["spec"]["context"], shown["spec"]["concurrency"]) == (4096, 1)
    assert "its files were not read" in (await longshore("models", "show", "remote")).out


async def test_lists_show_what_cannot_be_read(
    longshore: Command, control: Database, files: Path, tmp_path: Path
):
    file = tmp_path / "spoilt.yaml"
    file.write_text(_OWN.replace("name: own", "name: spoilt"))
    assert (await longshore("runtimes", "add", str(file))).code == 0
    source = ("--source", str(files / "tiny.gguf"))
    assert (await longshore("models", "add", "spoilt", *source)).code == 0
    async with control.transaction() as connection:
        for table in ("models", "runtimes"):
            statement = f"UPDATE {table} SET spec = spec || '{{\"x\": 1}}' WHERE name = 'spoilt'"
            await connection.execute(text(statement))
    for what in ("models", "runtimes"):
        listed = await longshore(*(("models", "list") if what == "models" else ("runtimes",)))
        assert listed.code == 0
        row = next(line for line in listed.out.splitlines() if line.startswith("spoilt "))
        assert "–" in row
        assert f"warning: what is stored of {what[:-1]} spoilt cannot be read: x: no" in listed.err
        assert (await longshore(what, "show", "spoilt")).code == 65
        assert (await longshore(what, "rm", "spoilt")).code == 0


async def test_a_url_of_a_file_is_a_path_of_nodes_too(longshore: Command, files: Path):
    asked = ("models", "add", "shared", "--source", "file:///nowhere/a.gguf")
    assert "is not on this machine: say with memory" in (await longshore(*asked)).err
    made = await longshore(*asked, "--memory", "2GB")
    assert "source: file:///nowhere/a.gguf is not on this machine: nothing of" in made.err
    here = await longshore("models", "add", "shared", "--source", f"file://{files}/tiny.gguf")
    assert (here.code, here.err) == (0, "")


async def test_what_an_estimate_says_beside_is_told(longshore: Command, files: Path):
    asked = ("models", "add", "long", "--source", str(files / "tiny.gguf"), "--context", "4096")
    made = await longshore(*asked, "--memory", "1MB")
    assert "warning: model long: The model was trained on 2,048 tokens and may answer" in made.err
    assert "warning: model long: memory: is 1MB; by its header it takes" in made.err
    gone = json.loads((await longshore("models", "rm", "long", "--json")).out)
    assert (gone["name"], gone["edit"], gone["revision"]) == ("long", "removed", 1)


def test_a_file_is_read_no_further_when_nobody_waits(files: Path, tmp_path: Path):
    """Someone who interrupts the command does not wait for the digest of a large file."""
    began, go_on, heard = threading.Event(), threading.Event(), list[int]()

    def told(read: int, of: int) -> None:
        heard.append(read)
        began.set()
        go_on.wait(60)

    large = tmp_path / "large.gguf"
    large.write_bytes((files / "tiny.gguf").read_bytes())
    with large.open("ab") as file:
        file.truncate(50 * 2**20)
    spec = ModelSpec(name="large", source=str(large), sha256="0" * 64)

    async def interrupted() -> None:
        examining = asyncio.create_task(examined(spec, BUILT_IN["llama.cpp"], told=told))
        await asyncio.to_thread(began.wait, 60)
        examining.cancel()
        with pytest.raises(asyncio.CancelledError):
            await examining
        go_on.set()

    asyncio.run(interrupted())  # its end waits for the threads
    assert len(heard) == 1


async def test_a_store_that_does_not_answer_wants_it_too(longshore: Command):
    asked = ("models", "add", "away", "--source", "http://127.0.0.1:9/a.gguf")
    refused = await longshore(*asked)
    assert refused.code == 69
    assert "model away: source: the model http://127.0.0.1:9/a.gguf cannot be " in refused.err
    made = await longshore(*asked, "--memory", "2GB")
    assert made.code == 0, made.err
    assert "source: nothing of it was looked at: the model http" in made.err


async def test_digests_are_looked_at_where_the_file_is(longshore: Command, files: Path):
    source = files / "tiny.gguf"
    digest = hashlib.sha256(source.read_bytes()).hexdigest()
    asked = ("models", "add", "digest", "--sha256", digest, "--source")
    made = await longshore(*asked, str(source))
    assert (made.code, made.err) == (0, "")
    wrong = ("models", "add", "digest", "--sha256", "1" * 64, "--source", f"file://{source}")
    assert f"and the file has {digest}" in (await longshore(*wrong)).err
    folder = await longshore(*asked, str(files / "qwen"), "--runtime", "vllm", "--memory", "9GB")
    assert folder.code == 65
    assert "sha256: " in folder.err
    assert "is a folder, and a digest is of a file" in folder.err


async def test_adapters_take_memory(longshore: Command, files: Path):
    asked = ("models", "add", "adapted", "--source", str(files / "tiny.gguf"), "--json")
    plain = ModelsEdit.model_validate_json((await longshore(*asked)).out).models[0]
    adapter = ("--adapter", f"formal={files}/formal.gguf")
    made = ModelsEdit.model_validate_json((await longshore(*asked, *adapter)).out)
    assert made.changes[0].fields == (f"adapters none to formal={files}/formal.gguf",)
    assert made.models[0].memory == plain.memory + 2 * 4 * 64 * 4


async def test_what_a_header_does_not_say_is_stated_and_proposed(longshore: Command, files: Path):
    asked = ("models", "add", "qwen", "--runtime", "vllm", "--source", str(files / "qwen"))
    refused = await longshore(*asked, "--concurrency", "2")
    assert refused.code == 65
    told = " ".join(refused.err.split())
    assert "model qwen: memory: is required for the runtime vllm" in told
    assert "By its files 900MB for 2 x 2,048 tokens: A proposal: every layer keeps" in told
    file = ("models", "add", "file", "--runtime", "vllm", "--source", str(files / "tiny.gguf"))
    refused = await longshore(*file)
    assert refused.code == 65
    assert " ".join(refused.err.split()).endswith("for 256 x 2,048 tokens")
    made = await longshore(*asked, "--memory", "3GB", "--json")
    view = ModelsEdit.model_validate_json(made.out).models[0]
    assert view.memory == 3_000_000_000
    assert (view.spec.context, view.spec.concurrency) == (2048, 256)
    assert view.facts is not None
    assert (view.facts.heads, view.facts.key_heads) == (12, 4)
    small = await longshore(*asked, "--memory", "1kB")
    assert "memory: is 0.001MB; its weights alone have 96" not in small.err  # 96 bytes fit
    smaller = await longshore(*asked, "--memory", "50B")
    assert "its weights alone have 96B in its files" in smaller.err
    nothing = await longshore("models", "add", "qwen", "--runtime", "vllm",
                              "--source", "https://example.invalid/model")  # fmt: skip
    assert "Its files say nothing of it here" in nothing.err


async def test_gpus_divide_the_heads(longshore: Command, files: Path):
    asked = ("models", "add", "wide", "--runtime", "vllm", "--source", str(files / "qwen"))
    wrong = await longshore(*asked, "--memory", "3GB", "--gpus", "3")
    assert wrong.code == 65
    why = "which does not go into 12 attention heads and 4 KV heads: 1, 2, 4 or 12 would do"
    assert f"model wide: gpus: is 3, {why}" in " ".join(wrong.err.split())
    assert (await longshore(*asked, "--memory", "3GB", "--gpus", "4")).code == 0
    # Of a folder that nobody can look into, it is as it was said.
    assert (await longshore("models", "add", "wide", "--runtime", "vllm", "--source", "/no",
                            "--memory", "3GB", "--gpus", "3")).code == 0  # fmt: skip


async def test_gpus_are_no_more_than_layers(longshore: Command, files: Path):
    asked = ("models", "add", "layered", "--source", str(files / "tiny.gguf"), "--gpus")
    wrong = await longshore(*asked, "3")
    assert wrong.code == 65
    assert "gpus: is 3, and the model has 2 layers: each GPU has one at least" in wrong.err
    assert (await longshore(*asked, "2")).code == 0


async def test_no_larger_than_any_gpu_where_the_runtime_does_not_split(
    longshore: Command, files: Path, tmp_path: Path
):
    file = tmp_path / "one-gpu.yaml"
    file.write_text(_OWN.replace("name: own", "name: one-gpu"))
    assert (await longshore("runtimes", "add", str(file))).code == 0
    asked = ("models", "add", "huge", "--source", str(files / "qwen"))
    refused = await longshore(*asked, "--runtime", "one-gpu", "--memory", "300GB")
    assert refused.code == 65
    why = "model huge: needs 300.0GB on one GPU: the largest that is known has 288GB (B300)"
    assert why in refused.err
    assert (await longshore(*asked, "--runtime", "one-gpu", "--memory", "280GB")).code == 0
    assert (await longshore(*asked, "--runtime", "vllm", "--memory", "300GB")).code == 0
    several = await longshore(*asked, "--runtime", "one-gpu", "--memory", "9GB", "--gpus", "2")
    assert "gpus: is 2, and its runtime runs on one GPU" in several.err


async def test_an_engine_that_no_process_could_be_given_is_refused(
    longshore: Command, tmp_path: Path
):
    """It is one variable of the environment, and Linux takes 131,071 bytes of each."""
    file = tmp_path / "long.yaml"
    model = {"name": "long", "source": "/nowhere/long.gguf", "memory": "1GB"}
    for args, code in ((["x" * 90_000], 0), (["x" * 90_000] * 2, 65)):
        file.write_text(json.dumps({**model, "args": args}))
        ran = await longshore("models", "add", str(file))
        assert ran.code == code, ran.err
    assert "model long: the engine has 18" in ran.err
    assert "as JSON (model 18" in " ".join(ran.err.split())
    assert "130,000 is the most: put what is long into a file" in " ".join(ran.err.split())
    assert (await longshore("models", "rm", "long")).code == 0


async def test_runtimes_from_the_built_in_ones_to_none_of_ones_own(
    longshore: Command, files: Path, tmp_path: Path
):
    listed = await longshore("runtimes", "--json")
    views = [RuntimeView.model_validate(each) for each in json.loads(listed.out)]
    built_in = {view.runtime.name: view.runtime for view in views if view.built_in}
    assert built_in == BUILT_IN
    file = tmp_path / "runtime.yaml"
    file.write_text(_OWN)
    made = await longshore("runtimes", "add", str(file))
    assert (made.code, made.out) == (0, "runtime own is made (revision 1)\n")
    asked = ("models", "add", "mine", "--source", str(files / "qwen"), "--runtime", "own")
    assert (await longshore(*asked, "--memory", "1GB")).code == 0
    lines = [line.split() for line in (await longshore("runtimes")).out.splitlines()]
    rows = {line[0]: line for line in lines}
    assert rows["own"][1:4] == ["stated", "none", "1"]
    assert rows["own"][5:] == ["serve", "{model}", "--port", "{port}"]
    assert rows["vllm"][4:6] == ["built", "in"]

    file.write_text(f"{_OWN}concurrency: 8\n")
    would = await longshore("runtimes", "add", str(file), "--dry-run")
    assert would.out == "would: runtime own is changed: concurrency 1 to 8 (revision 2)\n"
    changed = json.loads((await longshore("runtimes", "add", str(file), "--json")).out)
    assert changed["changes"][0]["revision"] == 2
    assert (await longshore("runtimes", "add", str(file))).out == "Nothing is changed.\n"
    assert "8 requests, unless a model says it" in (await longshore("runtimes", "show", "own")).out
    file.write_text(f"{_OWN}memory: header\n")
    kept = await longshore("runtimes", "add", str(file))
    assert kept.code == 77
    assert "runtime own keeps memory and split while models have it, such as mine" in kept.err
    file.write_text(_OWN.replace("own", "vllm"))
    taken = await longshore("runtimes", "add", str(file))
    assert taken.code == 77
    assert "runtime vllm is built in: give yours another name" in taken.err
    file.write_text("name: own\ncommand: [serve, '{modle}']\n")
    wrong = await longshore("runtimes", "add", str(file))
    assert wrong.code == 65
    assert f"{file}:2: command[1]: {{modle}} is no place; there are {{model}}" in wrong.err
    assert f"{file}:2: command: has no {{port}}" in wrong.err

    used = await longshore("runtimes", "rm", "own")
    assert used.code == 77
    assert "runtime own serves mine: give it another one first" in used.err
    assert (await longshore("models", "rm", "mine")).code == 0
    assert (await longshore("runtimes", "rm", "own")).out == "runtime own is removed\n"
    assert (await longshore("runtimes", "rm", "own")).code == 66
    built = await longshore("runtimes", "rm", "vllm")
    assert "runtime vllm is built in: it is not removed" in built.err


async def test_options_without_a_source_are_refused(longshore: Command, tmp_path: Path):
    ran = await longshore("models", "add", "a.yaml", "--context", "5")
    assert ran.code == 2
    assert "--context 5: give --source too" in " ".join(ran.err.split())
    absent = await longshore("models", "add", str(tmp_path / "absent.yaml"))
    assert absent.code == 65
    assert "no such file" in absent.err


async def test_a_folder_is_estimated(longshore: Command, files: Path):
    asked = ("models", "estimate", str(files / "qwen"), "--context", "100")
    ran = await longshore(*asked, "--gpu-memory", "80GB")
    assert ran.code == 0, ran.err
    assert ran.out.splitlines()[5].endswith("Qwen3ForCausalLM, on one GPU, a proposal")
    fits = "A GPU of 80GB has room for 4,096 requests at a time; no more can be asked for."
    assert fits in ran.out
    assert "A proposal: every layer keeps keys and values" in ran.err
    told = json.loads((await longshore(*asked, "--json")).out)
    heads, head = QWEN["num_key_value_heads"], QWEN["head_dim"]
    assert told["cache"] == 2 * 4 * heads * head * 2 * 100
    (file,) = (files / "qwen").glob("*.safetensors")
    alone = json.loads(
        (await longshore("models", "estimate", str(file), *asked[3:], "--json")).out
    )
    assert alone == {**told, "source": str(file)}, "its config.json lies beside it"


async def test_of_a_stated_memory_it_is_said_that_it_counts(longshore: Command, files: Path):
    asked = ("models", "add", "stated", "--source", str(files / "tiny.gguf"))
    assert (await longshore(*asked)).code == 0
    said = "Its engines hold the 3GB that it states and not this"
    assert said not in (await longshore("models", "show", "stated")).err
    assert (await longshore(*asked, "--memory", "3GB")).code == 0
    assert said in " ".join((await longshore("models", "show", "stated")).err.split())


async def test_a_file_behind_a_url_is_held_against_its_digest(longshore: Command, files: Path):
    digest = hashlib.sha256((files / "tiny.gguf").read_bytes()).hexdigest()
    with serving(files) as served:
        asked = ("models", "add", "far", "--source", f"{served.url}tiny.gguf", "--sha256")
        for verify in ([], ["--verify"]):
            refused = await longshore(*asked, "0" * 64, *verify)
            assert refused.code == 65
            assert f"and the file has {digest}" in refused.err
            made = await longshore(*asked, digest.upper(), *verify)
            assert (made.code, made.err) == (0, "")
        absent = await longshore("models", "add", "far", "--source", f"{served.url}none.gguf",
                                 "--memory", "1GB")  # fmt: skip
        assert absent.code == 65
        assert "model far: source: there is no file" in absent.err


async def test_a_file_that_is_here_needs_no_folder(
    longshore: Command, files: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(files)
    asked = ("--adapter", "formal=formal.gguf", "--json")
    made = await longshore("models", "add", "bare", "--source", "tiny.gguf", *asked)
    assert made.code == 0, made.err
    (spec,) = (each.spec for each in ModelsEdit.model_validate_json(made.out).models)
    assert spec.source == str(files / "tiny.gguf")
    assert spec.adapters == {"formal": str(files / "formal.gguf")}
    absent = await longshore("models", "add", "bare", "--source", "absent.gguf")
    assert "'absent.gguf' is a path, and has to begin with /, ~/ or ./" in absent.err


async def test_a_store_that_does_not_answer_is_told_with_what_helps(longshore: Command):
    (port,) = free_ports(1)
    url = f"http://127.0.0.1:{port}/m.gguf"
    ran = await longshore("models", "add", "far", "--source", url)
    assert ran.code == 69
    said = " ".join(ran.err.split())
    assert f"nothing answers at 127.0.0.1:{port} (Connection refused)" in said
    assert "With `memory` (--memory), which says what it needs, it is added unread" in said
    stated = await longshore("models", "add", "far", "--source", url, "--memory", "1GB")
    assert stated.code == 0, stated.err
