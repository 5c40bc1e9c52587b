"""A model of safetensors files, in a folder or alone, of which only the headers are read."""

import json
import posixpath
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, cast

from longshore.activities.serving.model_files import connect_model, opened
from longshore.activities.serving.safetensors import (
    NotSafetensorsError,
    SafetensorsHeader,
    read_header,
)
from longshore.activities.storage import address, speaking
from longshore.models.addresses import without_secrets
from longshore.models.errors import NotFoundError, StoreError
from longshore.models.safetensors import SafetensorsModel, TransformerConfig
from longshore.models.text import listed
from longshore.models.visible import shown

CONFIG = "config.json"
_ADAPTER_CONFIG = "adapter_config.json"
_ADAPTER = "adapter_"
"""How files of an adapter begin in its folder, as PEFT writes them."""
ENDING = ".safetensors"
_SPLIT = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.safetensors", re.ASCII | re.DOTALL)
_LEFT_OUT = ("consolidated", "adapter_model")
"""How files begin that lie beside the model: the same in another form, or an adapter of it."""
_MOST_FILES = 1_000
_MOST_CONFIG = 4 * 2**20
_INDEX = "model.safetensors.index.json"
_MOST_INDEX = 64 * 2**20
_MOST_HEADERS = 256 * 2**20
"""Bytes of all headers of a model."""
_MOST_LAYERS = 10_000
_MOST_NUMBER = 2**40


def is_folder(url: str) -> bool:
    """Return whether a path or URL is a folder. Blocks. Raises StoreError."""
    if url.startswith(("http:", "https:")):
        return False  # it has none, and whoever asks gets the file
    fs, path = connect_model(url)
    with speaking("model", url, "looked for"):
        return bool(fs.isdir(path))


def files_of_adapter(url: str) -> tuple[Any, list[str]]:
    """Return the file system of an adapter in a folder and its files. Blocks. Raises
    NotSafetensorsError where it has none, and StoreError."""
    fs, path = connect_model(url)
    with speaking("adapter", url, "listed"):
        entries = cast("list[dict[str, Any]]", fs.ls(path, detail=True))
    found = [str(each["name"]) for each in entries if each["type"] == "file"]
    names = sorted(map(posixpath.basename, found))
    if _ADAPTER_CONFIG not in names:
        raise NotSafetensorsError(f"{shown(url)} is a folder without {_ADAPTER_CONFIG}")
    files = [each for each in names if each.startswith(_ADAPTER)][:_MOST_FILES]
    return fs, [posixpath.join(path, each) for each in files]


def read_folder(url: str) -> SafetensorsModel:
    """Return what the files of a folder say.

    Blocks. Raises NotFoundError where it lacks one of several files, NotSafetensorsError also
    where it has none, and StoreError where a file cannot be read.
    """
    fs, folder = connect_model(url)
    weights, headers, number = Counter[str](), 0, 0
    for name in _files(fs, folder):
        header = _header(fs, posixpath.join(folder, name), name)
        weights += header.weights
        headers += header.length
        number += 1
        if headers > _MOST_HEADERS:
            raise NotSafetensorsError(
                f"the headers of {shown(folder)} have more than {_MOST_HEADERS // 2**20} MiB"
            )
    if not weights:
        raise NotSafetensorsError(f"the {ENDING} files of {shown(folder)} have no tensor")
    config, why = _config(fs, posixpath.join(folder, CONFIG))
    return SafetensorsModel(dict(weights.most_common()), number, config, why)


def files_in_folder(url: str) -> tuple[Any, list[str]]:
    """Return the file system of a model in a folder and its files. Raises as `read_folder`."""
    fs, folder = connect_model(url)
    return fs, [posixpath.join(folder, name) for name in _files(fs, folder)]


def read_file(url: str) -> SafetensorsModel:
    """Return what one file says that is a model by itself.

    Blocks. Raises NotFoundError, NotSafetensorsError, and StoreError where it cannot be read.
    """
    fs, path = connect_model(url)
    name = posixpath.basename(path)
    weights = _header(fs, path, name).weights
    if not weights:
        raise NotSafetensorsError(f"{shown(name)} has no tensor")
    try:
        config, why = _config(fs, posixpath.join(posixpath.dirname(path), CONFIG))
    except StoreError:  # a server may give out the one file alone
        config, why = None, f"{CONFIG} beside it cannot be read"
    return SafetensorsModel(dict(weights.most_common()), 1, config, why)


def _files(fs: Any, folder: str) -> list[str]:
    """Return the names of the files of the model in a folder."""
    with speaking("model", address(fs, folder), "listed"):
        entries = cast("list[str]", fs.ls(folder, detail=False))
    names = sorted(posixpath.basename(each.rstrip("/")) for each in entries)
    names = [each for each in names if each.endswith(ENDING) and not each.startswith(_LEFT_OUT)]
    if not names:
        raise NotSafetensorsError(
            f"{shown(folder)} is a folder without {ENDING} files: of a GGUF model name the .gguf "
            "file in it"
        )
    parts = [found for each in names if (found := _SPLIT.fullmatch(each))]
    if parts:
        stem, _, number = parts[0].groups()
        if not 1 <= int(number) <= _MOST_FILES:
            raise NotSafetensorsError(
                f"{shown(names[0])}: a model has 1 to {_MOST_FILES:,} files, not {number}"
            )
        wanted = [f"{stem}-{part:05}-of-{number}{ENDING}" for part in range(1, int(number) + 1)]
        missing = [each for each in wanted if each not in set(names)]
        if missing:
            named = listed([shown(each) for each in missing], 1)
            are = "is" if len(missing) == 1 else "are"
            raise NotFoundError(f"the model has {len(wanted)} files, and {named} {are} not there")
        return wanted
    named = _in_index(fs, posixpath.join(folder, _INDEX))
    if missing := sorted(named - set(names)):
        are = "is" if len(missing) == 1 else "are"
        raise NotFoundError(
            f"the model has {len(named)} files by {_INDEX}, and "
            f"{listed([shown(each) for each in missing], 1)} {are} not there"
        )
    names = sorted(named) or names
    if len(names) > _MOST_FILES:
        raise NotSafetensorsError(
            f"the folder {shown(folder)} has {len(names):,} {ENDING} files; {_MOST_FILES:,} are "
            "the most"
        )
    return names


def _in_index(fs: Any, path: str) -> set[str]:
    """Return the files that an index names; none where there is none. Raises NotSafetensorsError
    where it is damaged."""
    raw = _bytes_of(fs, path, _MOST_INDEX)
    if raw is None:
        return set()
    try:
        where = json.loads(raw)["weight_map"]
        files = set(cast("dict[str, Any]", where).values())
        named = all(isinstance(each, str) for each in files)
    except (ValueError, RecursionError, TypeError, KeyError, AttributeError):
        named, files = False, set[str]()
    if not named or not files:
        raise NotSafetensorsError(f"{_INDEX} does not say in which file each tensor is")
    return files


def _header(fs: Any, path: str, name: str) -> SafetensorsHeader:
    with (
        speaking("model", address(fs, path), "read"),
        suppress(FileNotFoundError),
        opened(fs, path) as (file, size),
    ):
        return read_header(file, size, shown(name))
    raise NotFoundError(f"there is no file {shown(without_secrets(address(fs, path)))}")


def _bytes_of(fs: Any, path: str, most: int) -> bytes | None:
    """Return what a small file has; None where there is none, nothing of one that is longer."""
    with (
        speaking("configuration", address(fs, path), "read"),
        suppress(FileNotFoundError),
        opened(fs, path) as (file, size),
    ):
        return file.read(most) if size <= most else b""
    return None


def _config(fs: Any, path: str) -> tuple[TransformerConfig | None, str]:
    """Return what a configuration says, or why it says nothing of use."""
    raw = _bytes_of(fs, path, _MOST_CONFIG)
    if raw is None:
        return None, f"there is no {CONFIG}"
    if not raw:
        return None, f"{CONFIG} is empty, or has over {_MOST_CONFIG // 2**20} MiB"
    try:
        read = json.loads(raw)
    except (ValueError, RecursionError):
        return None, f"{CONFIG} is no JSON"
    if not isinstance(read, dict):
        return None, f"{CONFIG} holds no mapping"
    return _sizes(cast("dict[str, Any]", read))


def _sizes(config: dict[str, Any]) -> tuple[TransformerConfig | None, str]:
    # Of a model that sees too, what writes has a mapping of its own.
    inner = config.get("text_config")
    said: dict[str, Any] = {**config, **cast("dict[str, Any]", inner)} if isinstance(
        inner, dict
    ) else config  # fmt: skip
    layers, width, heads = (
        _whole(said, name) for name in ("num_hidden_layers", "hidden_size", "num_attention_heads")
    )
    if not 1 <= layers <= _MOST_LAYERS:
        return None, f"{CONFIG} does not say num_hidden_layers"
    if not heads or not width:
        missing = "hidden_size" if heads else "num_attention_heads"
        return None, f"{CONFIG} does not say {missing}"
    latent = _whole(said, "kv_lora_rank")
    return TransformerConfig(
        architecture=next(_architectures(config), "unknown"),
        layers=layers, width=width, heads=heads,
        key_heads=_whole(said, "num_key_value_heads") or heads,
        head=_whole(said, "head_dim") or width // heads,
        latent=latent + _whole(said, "qk_rope_head_dim") if latent else 0,
        inner=_whole(said, "intermediate_size"), vocabulary=_whole(said, "vocab_size"),
        context=_whole(said, "max_position_embeddings") or None,
    ), ""  # fmt: skip


def _architectures(config: dict[str, Any]) -> Iterator[str]:
    named = config.get("architectures")
    first = cast("list[Any]", named)[:1] if isinstance(named, list) else []
    for each in (*first, config.get("model_type")):
        if isinstance(each, str) and each:
            yield each[:100]


def _whole(said: dict[str, Any], name: str) -> int:
    """Return a size; 0 where there is none, or one that no model has."""
    value = said.get(name)
    return value if type(value) is int and 0 < value < _MOST_NUMBER else 0
