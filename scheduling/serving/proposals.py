"""How much GPU memory an engine may want for a model of safetensors files: a proposal.

Such engines (vLLM) take what they are given, and nothing here was compared with one: the figure
is for somebody to state, or to change, and says what it assumes.
"""

from collections.abc import Iterator

from longshore.models.model_memory import CacheType, ModelMemory, Serving
from longshore.models.safetensors import SafetensorsModel, TransformerConfig
from longshore.models.text import count
from longshore.models.units import format_bytes
from longshore.scheduling.serving.memory import cache_bytes

_TOKENS_AT_A_TIME = 8_192
"""vLLM computes at most so many at a time as a server (`max_num_batched_tokens`)."""
_NUMBER = 2
"""Bytes of a number that is computed with."""
_WORTH = 4
"""Bytes of what a token of the vocabulary is worth; twice, since they are sorted."""


def propose(model: SafetensorsModel, serving: Serving) -> ModelMemory:
    """Return what a model would take on one GPU, with what is assumed in its notes.

    Without the model's configuration it has no cache and no buffers: a lower bound. Raises
    UnsatisfiableError for a cache that has no whole blocks.
    """
    config = model.config
    row = _row(config, serving.cache_type) if config else 0
    parts = {
        "weights": sum(model.weights.values()),
        "cache": row * serving.context * serving.concurrency,
        "state": 0,
        "compute": _compute(config, serving) if config else 0,
        "overhead": round(serving.overhead * 1e9),
    }
    return ModelMemory(
        source="",
        name="",
        architecture=config.architecture if config else "unknown",
        serving=serving,
        files=model.files,
        tensor_types=dict(model.weights),
        cells=serving.context,
        total=sum(parts.values()),
        exact=False,
        is_proposal=True,
        notes=tuple(_notes(model, serving, row, sum(parts.values()) - parts["cache"])),
        **parts,
    )


def _row(config: TransformerConfig, cache_type: CacheType) -> int:
    """Return the bytes of all keys and values of one token."""
    if config.latent:
        return config.layers * cache_bytes(1, config.latent, cache_type)
    return 2 * config.layers * cache_bytes(config.key_heads, config.head, cache_type)


def _compute(config: TransformerConfig, serving: Serving) -> int:
    attention = (config.heads + 2 * config.key_heads) * config.head
    each = max(2 * config.inner, attention) + 4 * config.width
    answers = 2 * _WORTH * config.vocabulary * serving.concurrency
    return _TOKENS_AT_A_TIME * each * _NUMBER + answers


def _notes(model: SafetensorsModel, serving: Serving, row: int, rest: int) -> Iterator[str]:
    config = model.config
    if config is None:
        yield (
            f"{model.why_no_config}: the figure is weights and overhead alone, without the "
            "cache and what is computed with. The engine needs more."
        )
        return
    kept = "one compressed row" if config.latent else "keys and values"
    yield (
        f"A proposal: every layer keeps {kept} of the whole context in {serving.cache_type}, "
        f"{count(_TOKENS_AT_A_TIME, 'token')} are computed at a time, and weights stay as they "
        "are in the files."
    )
    if serving.concurrency > 1:
        least = rest + row * serving.context
        yield (
            f"That is room for {count(serving.concurrency, 'request')} of full length at a time. "
            "An engine that gives out its cache in pages (vLLM) starts with "
            f"{format_bytes(least)} for one, and takes as many as fit."
        )
    if config.context and serving.context > config.context:
        yield (
            f"The model was trained on {count(config.context, 'token')} and may answer worse "
            f"beyond: {serving.context:,} are asked for."
        )
