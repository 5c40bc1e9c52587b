"""Writes models as folders of safetensors files, with weights of 0."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

QWEN: Mapping[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"], "num_hidden_layers": 4, "hidden_size": 256,
    "num_attention_heads": 12, "num_key_value_heads": 4, "head_dim": 64,
    "intermediate_size": 512, "vocab_size": 1000, "max_position_embeddings": 2048,
}  # fmt: skip


def header(tensors: Mapping[str, Any]) -> bytes:
    """Return the length and the text of a header."""
    text = json.dumps(tensors).encode()
    return len(text).to_bytes(8, "little") + text


def whole(shapes: Sequence[Sequence[int]] = ((4, 8), (16,)), kind: str = "BF16") -> bytes:
    """Return a file with tensors of these shapes, of numbers of 2 bytes."""
    tensors: dict[str, Any] = {"__metadata__": {"format": "pt", "brace": '{"a": "}"}'}}
    at = 0
    for number, shape in enumerate(shapes):
        size = 2
        for each in shape:
            size *= each
        tensors[f"layer.{number}"] = {
            "dtype": kind, "shape": list(shape), "data_offsets": [at, at + size],
        }  # fmt: skip
        at += size
    return header(tensors) + bytes(at)


def write(
    folder: Path, *, files: int = 1, config: Mapping[str, Any] | None = QWEN, raw: bytes = b""
) -> Path:
    """Write a folder with so many files of two tensors each; `raw` stands for one of them."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(1, files + 1):
        name = f"model-{number:05}-of-{files:05}" if files > 1 else "model"
        (folder / f"{name}.safetensors").write_bytes(raw or whole())
    if config is not None:
        (folder / "config.json").write_text(json.dumps(config))
    return folder
