"""What the files of a model say of it, of whichever form they are."""

import hashlib
import posixpath
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from longshore.activities.serving.model_files import (
    connect_model,
    files_in,
    opened,
    read_model,
    sampled,
)
from longshore.activities.serving.model_folder import (
    ENDING,
    files_in_folder,
    files_of_adapter,
    is_folder,
    read_file,
    read_folder,
)
from longshore.activities.storage import address, connect, speaking
from longshore.models.addresses import without_secrets
from longshore.models.errors import DamagedError, NotFoundError, StoreError
from longshore.models.gguf import GGUFHeader
from longshore.models.model_memory import MOST_CONCURRENCY, ModelMemory, Serving
from longshore.models.model_registry import ModelFacts
from longshore.models.safetensors import SafetensorsModel
from longshore.models.serving import is_url
from longshore.models.visible import shown
from longshore.scheduling.serving.adapters import why_unfit
from longshore.scheduling.serving.memory import MOST_REQUESTS, estimate
from longshore.scheduling.serving.proposals import propose

Told = Callable[[int, int], None]
"""Hears how many bytes were read, of how many."""
_PIECE = 2**20


def place_of(source: str) -> str:
    """Return the URL, or the path on this machine."""
    return source if is_url(source) else str(Path(source).expanduser())


def path_of(source: str) -> str | None:
    """Return the path on this machine; None of a URL that is the same from everywhere."""
    if not is_url(source):
        return place_of(source)
    return connect(source)[1] if source.startswith("file:") else None


@dataclass(frozen=True)
class ReadModel:
    """What the files of a model say."""

    needs: Callable[[Serving], ModelMemory]
    """What it needs where it is served so. Raises UnsatisfiableError where it cannot be."""
    layers: int = 0
    heads: int = 0
    key_heads: int = 0
    context: int | None = None
    """Tokens of the longest text that it was trained on."""
    most_requests: int = MOST_CONCURRENCY
    """At a time, of one engine."""
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict[str, tuple[int, ...]])
    """Of the tensors of a GGUF model, the length of a row first."""
    files: Callable[[], tuple[Any, Sequence[str]]] | None = None
    """Says where its files are."""

    def facts(self, serving: Serving, *, context_is_said: bool) -> ModelFacts:
        """Return what is stored of it. Unless the context was said, it is no longer than what the
        model was trained on. Blocks. Raises UnsatisfiableError."""
        return ModelFacts(
            memory=self.needs(self.served(serving, context_is_said=context_is_said)),
            layers=self.layers, heads=self.heads, key_heads=self.key_heads, context=self.context,
            files=self._sampled(),
        )  # fmt: skip

    def _sampled(self) -> str:
        return _digest_of_samples(*self.files()) if self.files else ""

    def served(self, serving: Serving, *, context_is_said: bool) -> Serving:
        if context_is_said or self.context is None or self.context >= serving.context:
            return serving
        return serving.model_copy(update={"context": self.context})


@dataclass(frozen=True)
class ReadAdapter:
    """What the files of a LoRA adapter say."""

    size: int
    """Bytes of its weights; 0 where they are not known."""
    files: str
    """A digest as `ModelFacts.adapter_files` has it."""


def _digest_of_samples(fs: Any, paths: Sequence[str]) -> str:
    """Return a digest of pieces of files; empty where they cannot be read so."""
    # Some servers give a file from its beginning alone.
    with suppress(StoreError, NotFoundError):
        return sampled(fs, paths)
    return ""


def read_files(source: str) -> ReadModel:
    """Read the headers of a GGUF file, or of safetensors files: one, or all in a folder.

    Blocks. Raises NotFoundError, DamagedError, and StoreError where a file cannot be read.
    """
    place = place_of(source)
    if is_folder(place):
        return replace(
            _of_safetensors(read_folder(place), source), files=lambda: files_in_folder(place)
        )
    if place.endswith(ENDING):
        return replace(_of_safetensors(read_file(place), source), files=lambda: _one_file(place))
    header = read_model(place)
    if header.keys.get("general.type") == "adapter":
        raise DamagedError(
            f"{header.files[0]} is an adapter, and no model: name the model that it is for, and "
            "this with --adapter NAME=SOURCE (`adapters` in a file)"
        )
    heads = _number(header, "attention.head_count")
    return ReadModel(
        lambda serving: estimate(header, serving).model_copy(update={"source": source}),
        layers=_number(header, "block_count"), heads=heads,
        key_heads=_number(header, "attention.head_count_kv") or heads,
        context=_number(header, "context_length") or None, most_requests=MOST_REQUESTS,
        shapes={tensor.name: tensor.shape for tensor in header.tensors},
        files=lambda: files_in(place),
    )  # fmt: skip


def _one_file(place: str) -> tuple[Any, Sequence[str]]:
    fs, path = connect_model(place)
    return fs, [path]


def _of_safetensors(model: SafetensorsModel, source: str) -> ReadModel:
    def needs(serving: Serving) -> ModelMemory:
        return propose(model, serving).model_copy(update={"source": source})

    config = model.config
    if config is None:
        return ReadModel(needs)
    return ReadModel(needs, config.layers, config.heads, config.key_heads, config.context)


def _number(header: GGUFHeader, key: str) -> int:
    """Return a number of the header; of one for each layer the largest."""
    value: Any = header.of_model(key)
    found = max(value, default=0) if isinstance(value, tuple) else value
    return found if type(found) is int and 0 < found < 2**31 else 0


def read_adapter_folder(source: str) -> ReadAdapter:
    """Read what tells an adapter in a folder, as vLLM takes it, from others. Blocks. Raises
    DamagedError where there is none, and StoreError."""
    return ReadAdapter(0, _digest_of_samples(*files_of_adapter(place_of(source))))


def read_adapter(
    source: str, architecture: str, shapes: Mapping[str, tuple[int, ...]]
) -> ReadAdapter:
    """Read a LoRA adapter in a GGUF file.

    `shapes` are those of the model's tensors; without any they are not looked at. Blocks. Raises
    DamagedError where it is no adapter, or one for another model, and else what `read_files`
    raises.
    """
    header = read_model(place_of(source))
    if header.keys.get("general.type") != "adapter":
        says = _says(header, "general.type")
        raise DamagedError(f"{header.files[0]} is no adapter: {says}")
    if header.keys.get("adapter.type") != "lora":
        says = _says(header, "adapter.type")
        raise DamagedError(f"{header.files[0]} is no LoRA adapter: {says}")
    if architecture and header.architecture != architecture:
        raise DamagedError(
            f"{header.files[0]} is an adapter {_architecture(header)}, and the model is "
            f"{architecture}"
        )
    if shapes and (why := why_unfit({each.name: each.shape for each in header.tensors}, shapes)):
        raise DamagedError(f"{header.files[0]} is an adapter for another model: {why}")
    size = sum(tensor.size for tensor in header.tensors)
    return ReadAdapter(size, _digest_of_samples(*files_in(place_of(source))))


def _says(header: GGUFHeader, key: str) -> str:
    """Return what a header has for a key that should be another."""
    found = header.keys.get(key)
    return f"it has no {key}" if found is None else f"its {key} is {shown(found)}"


def _architecture(header: GGUFHeader) -> str:
    named = header.architecture
    return f"of the architecture {shown(named)}" if named else "that names no architecture"


def size_of(source: str) -> int:
    """Return the bytes of a file. Blocks. Raises as `digest_of`."""
    fs, path = connect_model(place_of(source))
    with speaking("model", address(fs, path), "read"):
        try:
            with opened(fs, path) as (_, size):
                return size
        except FileNotFoundError:
            raise _no_file(fs, path) from None


def _no_file(fs: Any, path: str) -> NotFoundError:
    return NotFoundError(f"there is no file {shown(without_secrets(address(fs, path)))}")


def digest_of(source: str, told: Told) -> str:
    """Return the SHA-256 of a file. Blocks. Raises NotFoundError, DamagedError, StoreError."""
    fs, path = connect_model(place_of(source), whole=True)
    name = shown(posixpath.basename(path))
    digest, read = hashlib.sha256(), 0
    with speaking("model", address(fs, path), "read"):
        try:
            with opened(fs, path) as (file, size):
                while piece := file.read(_PIECE):
                    digest.update(piece)
                    read += len(piece)
                    told(read, size)
        except FileNotFoundError:
            raise _no_file(fs, path) from None
    if not read:
        raise DamagedError(f"{name} is empty")
    return digest.hexdigest()
