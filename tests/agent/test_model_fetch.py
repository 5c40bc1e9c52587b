"""Files of models that a node fetches: whole or not at all, kept as long as there is room."""

from pathlib import Path
from typing import Any

import pytest

from longshore.activities import own_link
from longshore.activities.artifacts.store import ArtifactStore
from longshore.activities.node import data_cache
from longshore.activities.node.artifact_cache import ArtifactCache
from longshore.activities.node.caches import Caches
from longshore.activities.node.data_cache import DataCache
from longshore.activities.serving.model_files import read_model
from longshore.activities.storage import connect
from longshore.models.errors import StoreError
from longshore.scheduling.node_caches import CacheLimits, Disk
from tests.agent.conftest import LocalNode, MakeBox
from tests.agent.test_engines import an_engine, ask, digest_of, ready
from tests.support.gguf_models import Model, write
from tests.support.object_store import object_store
from tests.support.served import serving


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has a file tried again after 0.01 s, and a source looked at anew each time."""
    monkeypatch.setattr(data_cache, "FIRST_WAIT", 0.01)
    monkeypatch.setattr(data_cache, "_LISTED_FOR", 0.0)


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    """A model of 0.5 MB; 0.02 s."""
    (tmp_path / "models").mkdir()
    return write(Model(), tmp_path / "models/tiny.gguf")


def of_url(url: str, **model: Any) -> dict[str, Any]:
    data = {"model": {"from": url, "start_at": 1.0}}
    return {"engine": an_engine(url, **model), "data": data, "gpus": 1}


async def why_failed(box: LocalNode, url: str, **model: Any) -> str:
    """Start an engine that fails; return why."""
    run = box.start(None, **of_url(url, **model))
    report = await run.done
    said = run.progress().engine
    return said.message if said is not None else f"{report}"


async def test_a_server_that_is_away_is_not_said_to_have_nothing(box: LocalNode, tiny: Path):
    with serving(tiny.parent) as served:
        url = f"{served.url}tiny.gguf"
    why = await why_failed(box, url)
    assert why.startswith(f"{url} could not be fetched: the source {url} cannot be listed: ")


def test_a_model_is_not_read_from_the_own_link_of_the_machine(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
):
    """There clouds give out the credentials of a machine."""
    with serving(tiny.parent) as served:
        assert read_model(f"{served.url}tiny.gguf").tensors
        monkeypatch.setattr(own_link, "is_of_link", lambda address: str(address) == "127.0.0.1")
        with pytest.raises(StoreError, match="is an address of the machine's own link"):
            read_model(f"{served.url}tiny.gguf")


async def test_one_that_has_no_such_file_is(box: LocalNode, tiny: Path):
    with serving(tiny.parent) as served:
        url = f"{served.url}none.gguf"
        assert (
            await why_failed(box, url) == f"{url} could not be fetched: there is nothing at {url}"
        )


async def test_a_model_that_is_whole_here_is_served_while_its_server_is_away(
    box: LocalNode, tiny: Path
):
    with serving(tiny.parent) as served:
        url = f"{served.url}tiny.gguf"
        run = box.start(None, **of_url(url, sha256=digest_of(tiny)))
        await ready(box, run)
        await box.stop(run)
        served.away = {"tiny.gguf"}
        run = box.start(None, **of_url(url))
        await ready(box, run)
        await box.stop(run)
    run = box.start(None, **of_url(url))
    assert len(ask((await ready(box, run)).endpoint)["choices"]) == 1


async def test_one_that_breaks_off_is_fetched_again_and_never_served_in_part(
    box: LocalNode, tiny: Path
):
    with serving(tiny.parent) as served:
        url = f"{served.url}tiny.gguf"
        served.breaks_off = {"tiny.gguf": 2}
        run = box.start(None, **of_url(url, sha256=digest_of(tiny)))
        await ready(box, run)
        assert served.asked.count("tiny.gguf") == 3
        await box.stop(run)
        write(Model(layers=3), tiny)  # another file, and so another set
        served.breaks_off = {"tiny.gguf": 100}
        assert (await why_failed(box, url)).startswith(f"{url} could not be fetched: ")


@pytest.mark.exhaustive
async def test_a_model_in_a_bucket_is_read_and_served(box: LocalNode, tiny: Path):
    with object_store() as store:
        fs, root = connect(store)
        fs.put_file(str(tiny), f"{root}/tiny.gguf")
        url = f"{store}/tiny.gguf"
        assert read_model(url).tensors == read_model(str(tiny)).tensors
        run = box.start(None, **of_url(url, sha256=digest_of(tiny)))
        assert len(ask((await ready(box, run)).endpoint)["choices"]) == 1
        await box.stop(run)
        why = await why_failed(box, url, sha256="0" * 64)
        assert f"has the SHA-256 digest {digest_of(tiny)}, and not 000" in why


@pytest.mark.exhaustive
async def test_the_least_recently_used_goes_and_never_what_an_engine_has(
    make_box: MakeBox, tmp_path: Path, tiny: Path
):
    box = make_box(tmp_path / "node")
    for name in ("old", "new", "used"):
        write(Model(layers=4), tiny.parent / f"{name}.gguf")
    with serving(tiny.parent) as served:
        used = box.start(None, **of_url(f"{served.url}used.gguf"))
        endpoint = (await ready(box, used)).endpoint
        for name in ("old", "new"):
            run = box.start(None, **of_url(f"{served.url}{name}.gguf"))
            await ready(box, run)
            await box.stop(run)
    folder = box.folder / "cache"
    data = DataCache(folder)  # as of an agent beside it
    artifacts = ArtifactCache(folder, ArtifactStore((tmp_path / "artifacts").as_uri()))
    caches = Caches(folder, artifacts, CacheLimits(keep_free=0), data=data)
    size = tiny.parent.joinpath("used.gguf").stat().st_size

    def here() -> set[str]:
        return {each.source.rpartition("/")[2] for each in data.held()}

    caches.evict(Disk(total=3 * size, free=0))
    assert here() == {"used.gguf", "new.gguf"}
    caches.evict(Disk(total=100 * size, free=0))
    assert here() == {"used.gguf"}
    assert len(ask(endpoint)["choices"]) == 1
    await box.stop(used)
    caches.evict(Disk(total=100 * size, free=0))
    assert here() == set()
