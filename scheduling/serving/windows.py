"""Which layers of a model attend to a window of the last tokens, and not to everything.

By the keys that llama.cpp reads, and what it takes where they lack (tests/serving compares the
caches that follow with its log). Other architectures are not asked here.
"""

from dataclasses import dataclass

from longshore.models.errors import UnsatisfiableError
from longshore.models.gguf import GGUFHeader
from longshore.scheduling.serving.header_sizes import named, size_of, whole

_PERIODS = {"cohere2": 4, "gemma2": 2, "gemma3": 6}
"""Of so many layers the last attends to everything, where the header does not say."""
WINDOWED = frozenset(_PERIODS)
_SIZE, _PATTERN = "attention.sliding_window", "attention.sliding_window_pattern"
_USUAL_SIZE = {"gemma2": 4096}
"""Tokens, where the header does not say."""
_NEEDS_NONE = frozenset({"gemma3"})
"""Without a size, or with 0, no layer has a window, and nobody reads the pattern. Of the others 0
is a window that holds the batch alone."""


@dataclass(frozen=True)
class Windows:
    """The layers that have a window, counted from 0, and its tokens."""

    layers: frozenset[int] = frozenset()
    size: int = 0


def windows_of(header: GGUFHeader, layers: int) -> Windows:
    """Return the windows of a model of so many layers.

    Raises UnsatisfiableError, with the key, where the engine would not load such a model.
    """
    architecture = header.architecture
    if architecture not in WINDOWED:
        return Windows()
    size = size_of(header, _SIZE, _USUAL_SIZE.get(architecture, 0))
    if architecture in _NEEDS_NONE and not size:
        return Windows()
    if header.of_model(_SIZE) is None and architecture not in _USUAL_SIZE:
        raise UnsatisfiableError(
            f"{named(header)}.{_SIZE} is missing: llama.cpp loads no such model without it"
        )
    found = _layers_of(header, layers)
    if not found:
        raise UnsatisfiableError(
            f"{named(header)}.{_PATTERN} leaves no layer a window: llama.cpp loads no such model"
        )
    return Windows(found, size)


def _layers_of(header: GGUFHeader, layers: int) -> frozenset[int]:
    """Return the layers that the pattern gives a window: it is a period, of which 0 is none, or
    has an entry for each layer. A layer without an entry attends to everything."""
    pattern = header.of_model(_PATTERN)
    if isinstance(pattern, tuple):
        if not all(isinstance(each, int) for each in pattern):
            raise UnsatisfiableError(
                f"{named(header)}.{_PATTERN} has an entry that is neither true, false nor a whole "
                "number: nobody knows which layers have a window"
            )
        return frozenset(layer for layer, each in enumerate(pattern[:layers]) if each)
    if pattern is None:
        if (entries := header.lengths.get(f"{header.architecture}.{_PATTERN}")) is not None:
            raise UnsatisfiableError(
                f"{named(header)}.{_PATTERN} is a list of texts, or has more entries than a model "
                f"has layers: {entries:,}"
            )
        pattern = _PERIODS[header.architecture]
    period = whole(header, _PATTERN, pattern)
    return frozenset(layer for layer in range(layers) if not period or (layer + 1) % period)
