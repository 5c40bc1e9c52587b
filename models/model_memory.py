"""How much memory of a GPU a model needs, and from what that follows."""

from enum import StrEnum

from pydantic import Field

from longshore.models.base import Frozen
from longshore.models.units import GB

MOST_CONTEXT = 2**31 - 1
"""Tokens of one request."""
MOST_CONCURRENCY = 4096
"""Requests at a time of one engine."""


class CacheType(StrEnum):
    """The number format of a KV cache (llama.cpp's `--cache-type-k` and `-v`)."""

    F32 = "f32"
    F16 = "f16"
    BF16 = "bf16"
    Q8_0 = "q8_0"
    Q5_1 = "q5_1"
    Q5_0 = "q5_0"
    Q4_1 = "q4_1"
    Q4_0 = "q4_0"


class Serving(Frozen):
    """How an engine will run a model: what its memory depends on beside the model."""

    context: int = Field(default=4096, ge=1, le=MOST_CONTEXT)
    """Tokens of the longest request, with its answer."""
    concurrency: int = Field(default=1, ge=1, le=MOST_CONCURRENCY)
    """Requests at a time."""
    cache_type: CacheType = CacheType.F16
    batch: int = Field(default=512, ge=1, le=65_536)
    """Tokens of prompts that are computed at a time (llama.cpp's `--ubatch-size`)."""
    overhead: GB = Field(default=0.75, ge=0)
    """What of each GPU the engine's runtime takes: the driver's context, its libraries. llama.cpp
    took 0.63 to 0.73 GB of an H100 (driver 580, CUDA 13)."""


class ModelMemory(Frozen):
    """What a model needs on one GPU, in bytes."""

    source: str
    name: str = ""
    architecture: str
    serving: Serving
    files: int = 1
    weights: int
    """Of all tensors."""
    tensor_types: dict[str, int]
    """Bytes of the weights by type, the largest first."""
    cache: int
    """KV cache of all requests."""
    cells: int
    """Tokens that the cache holds for one request; layers with a window hold fewer."""
    state: int
    """What recurrent layers keep, of all requests."""
    compute: int
    """At most: buffers for what is computed."""
    overhead: int
    adapters: int = 0
    """Weights of LoRA adapters."""
    layers: int = 0
    """Set where it is known what a layer takes."""
    largest_layer: int = 0
    """Weights of one layer with its cache and state, of all requests: of that with the most."""
    outside: int = 0
    """Weights that are in no layer."""
    total: int
    most_requests: int | None = None
    """At a time, on a GPU of `gpu_memory`; 0: not even one."""
    gpu_memory: GB | None = None
    exact: bool
    """Whether weights, cache and state are the engine's own figures; else they are a bound."""
    is_proposal: bool = False
    """The engine takes what it is given: this is for somebody to state, or to change."""
    notes: tuple[str, ...] = ()
