"""What the header of a GGUF file says of the sizes of a model, and of which architectures we know
what their tensors are."""

from dataclasses import dataclass

from longshore.models.errors import UnsatisfiableError
from longshore.models.gguf import GGUFHeader
from longshore.scheduling.serving.header_sizes import named, needed_size, per_layer, size_of
from longshore.scheduling.serving.windows import WINDOWED, Windows, windows_of

_PLAIN = frozenset({"gemma", "llama", "phi3", "qwen2", "qwen3", "qwen3moe"})
"""Every layer attends to everything."""
_RECURRENT = frozenset({"mamba"})
LATENT = frozenset({"deepseek2"})
"""Keys and values may be read from one compressed row, which is kept once."""
ATTENDING = _PLAIN | WINDOWED
"""Every layer has heads of its own."""
KNOWN = ATTENDING | LATENT | _RECURRENT
PACKED = frozenset({"phi3"})
"""The first matrix of a feed-forward part holds two."""
_STATE_ALONE = ("ssm.state_size", "wkv.head_size")
"""A model with one of these may have no heads: Mamba and RWKV say that they have 0."""
_MOST_LAYERS = 10_000


@dataclass(frozen=True)
class Shape:
    """What the header says of the sizes of a model."""

    header: GGUFHeader
    layers: int
    width: int
    heads: tuple[int, ...]
    key_heads: tuple[int, ...]
    key: int
    value: int
    windows: Windows

    def number(self, key: str, default: int = 0) -> int:
        return size_of(self.header, key, default)


def shape_of(header: GGUFHeader) -> Shape:
    """Return what a header says. Raises UnsatisfiableError, with the key that is missing or wrong,
    where it does not say how large the model is."""
    if not header.architecture:
        raise UnsatisfiableError(
            "general.architecture is missing: nobody knows what model this is"
        )
    layers = needed_size(header, "block_count")
    width = needed_size(header, "embedding_length")
    if layers > _MOST_LAYERS:
        raise UnsatisfiableError(
            f"{named(header)}.block_count is {layers:,}; {_MOST_LAYERS:,} are the most"
        )
    has_heads = header.architecture in ATTENDING | LATENT
    if has_heads or not any(size_of(header, key, 0) for key in _STATE_ALONE):
        needed_size(header, "attention.head_count")
    heads = per_layer(header, "attention.head_count", layers)
    # A header that says nothing of KV heads means as many as heads (so does llama.cpp).
    key_heads = (
        heads
        if header.of_model("attention.head_count_kv") is None
        else per_layer(header, "attention.head_count_kv", layers)
    )
    if header.architecture in ATTENDING and not (min(heads) and min(key_heads)):
        raise UnsatisfiableError(
            f"{named(header)}.attention.head_count or head_count_kv is 0, and each layer of such "
            "a model has both: without them nobody knows how large its cache is"
        )
    # As the engine has it: by the first layer, where the header says no numbers of a head.
    first = heads[0] or max(heads)
    each = -(-width // first) if first else 0
    if (
        header.architecture in KNOWN
        and first
        and width % first
        and header.of_model("attention.key_length") is None
    ):
        raise UnsatisfiableError(
            f"{named(header)}.attention.head_count is {first:,} and does not divide "
            f"embedding_length, {width:,}, and attention.key_length is missing"
        )
    return Shape(
        header, layers, width, heads, key_heads,
        key=size_of(header, "attention.key_length", each),
        value=size_of(header, "attention.value_length", each),
        windows=windows_of(header, layers),
    )  # fmt: skip
