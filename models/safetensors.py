"""What a model in a folder of safetensors files says of itself.

Formats: github.com/huggingface/safetensors (README, "Format"), and the `config.json` of
github.com/huggingface/transformers.
"""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TransformerConfig:
    """What `config.json` says of the sizes of a model."""

    architecture: str
    layers: int
    width: int
    heads: int
    key_heads: int
    head: int
    """Numbers of a key, or of a value, of one head."""
    latent: int = 0
    """Numbers of the one compressed row that stands for keys and values of a token (multi-head
    latent attention); 0 where there is none."""
    inner: int = 0
    """Of the feed-forward part of a layer; 0 where it is not said."""
    vocabulary: int = 0
    context: int | None = None
    """Tokens of the longest text that it was trained on."""


@dataclass(frozen=True)
class SafetensorsModel:
    """A model of one or several files in a folder."""

    weights: Mapping[str, int]
    """Bytes by type, such as BF16, the most first."""
    files: int
    config: TransformerConfig | None
    why_no_config: str = ""
    """A sentence: why there is none."""
