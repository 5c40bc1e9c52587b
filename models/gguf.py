"""What the header of a GGUF file says: keys, and the tensors with their types and sizes.

Format: github.com/ggml-org/ggml, docs/gguf.md (version 3; 2 differs in nothing that is read here).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

TENSOR_TYPES: Mapping[int, tuple[str, int, int]] = {
    0: ("F32", 1, 4),
    1: ("F16", 1, 2),
    2: ("Q4_0", 32, 18),
    3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24),
    8: ("Q8_0", 32, 34),
    10: ("Q2_K", 256, 84),
    11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210),
    15: ("Q8_K", 256, 292),
    16: ("IQ2_XXS", 256, 66),
    17: ("IQ2_XS", 256, 74),
    18: ("IQ3_XXS", 256, 98),
    19: ("IQ1_S", 256, 50),
    20: ("IQ4_NL", 32, 18),
    21: ("IQ3_S", 256, 110),
    22: ("IQ2_S", 256, 82),
    23: ("IQ4_XS", 256, 136),
    24: ("I8", 1, 1),
    25: ("I16", 1, 2),
    26: ("I32", 1, 4),
    27: ("I64", 1, 8),
    28: ("F64", 1, 8),
    29: ("IQ1_M", 256, 56),
    30: ("BF16", 1, 2),
    34: ("TQ1_0", 256, 54),
    35: ("TQ2_0", 256, 66),
    39: ("MXFP4", 32, 17),
    40: ("NVFP4", 64, 36),
    41: ("Q1_0", 128, 18),
    42: ("Q2_0", 64, 18),
}
"""By number: name, weights in a block, bytes of a block (ggml.h and ggml-common.h, 2026-11)."""

Value = int | float | bool | str | tuple[int | float | bool, ...]


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor of a model: `shape` has the length of a row first."""

    name: str
    shape: tuple[int, ...]
    type: int

    @property
    def weights(self) -> int:
        return math.prod(self.shape)

    @property
    def size(self) -> int:
        """Bytes. A row is whole blocks, which the reader has checked."""
        _, block, size = TENSOR_TYPES[self.type]
        return self.weights // block * size


@dataclass(frozen=True)
class GGUFHeader:
    """The header of a model, of all of its files where it is split."""

    keys: Mapping[str, Value]
    """Numbers, short texts and short lists of numbers; longer ones are in `lengths` alone."""
    lengths: Mapping[str, int]
    """The number of entries of each list."""
    tensors: tuple[Tensor, ...]
    files: tuple[str, ...] = ()
    file_size: int = 0
    """Bytes of all files."""
    length: int = 0
    """Bytes of the headers of all files."""

    @property
    def architecture(self) -> str:
        value = self.keys.get("general.architecture")
        return value if isinstance(value, str) else ""

    @property
    def name(self) -> str:
        value = self.keys.get("general.name")
        return value if isinstance(value, str) else ""

    @property
    def vocabulary(self) -> int:
        """The number of tokens; 0 where the header does not say."""
        rows = (each.shape[-1] for each in self.tensors if each.name == "token_embd.weight")
        return self.lengths.get("tokenizer.ggml.tokens", 0) or max(rows, default=0)

    def of_model(self, key: str) -> Value | None:
        """Return the value of a key of the model's architecture, as `context_length`."""
        return self.keys.get(f"{self.architecture}.{key}")
