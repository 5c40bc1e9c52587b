"""MIG: where instances of each profile can be on a GPU.

A GPU in MIG mode has eight slices of memory and is cut into instances; each takes the slices of
its position alone. A set of slices is an int, bit i for slice i. Profiles, their slices and where
they may begin are those of NVIDIA's MIG user guide ("Supported MIG Profiles", the tables and the
placements of `nvidia-smi mig -lgipp`): two instances never overlap, and a profile begins at the
slices named there only. Profiles with media engines (`+me`) are not told apart.
"""

import re
from typing import Annotated

from pydantic import AfterValidator, Field

from longshore.models.visible import shown

SLICES = 8
"""Of memory, on every GPU listed here."""

MigPositions = dict[str, tuple[int, ...]]
"""The profiles that a GPU can have, each with the sets of slices that an instance can take."""

_PROFILE = re.compile(r"([1-9])g\.([1-9]\d{0,3})gb", re.ASCII)
_SIX_SHAPES = ((1, 1, range(7)), (1, 2, (0, 2, 4, 6)), (2, 2, (0, 2, 4)), (3, 4, (0, 4)),
               (4, 4, (0,)), (7, 8, (0,)))  # fmt: skip
"""Compute slices, memory slices, and where they may begin: equal on all of these models."""
_MEMORY = {
    ("A100", 40): (5, 10, 10, 20, 20, 40),
    ("A100", 80): (10, 20, 20, 40, 40, 80),
    ("H100", 80): (10, 20, 20, 40, 40, 80),
    ("H200", 141): (18, 35, 35, 71, 71, 141),
    ("B200", 180): (23, 45, 45, 90, 90, 180),
}
"""GB in the names of the six profiles, by model and GB of the GPU."""
_SAME_SIZE = 0.1
"""A GPU is of the listed size that its own differs from by less than this share."""


_LONGEST = 100
"""Characters of a profile as it is written, blanks beside it included."""


def check_profile(name: str) -> str:
    """Return the name of a profile in lower case. Raises ValueError for another form."""
    lower = name.strip().casefold()
    if len(name) > _LONGEST or not _PROFILE.fullmatch(lower):
        raise ValueError(f"expected a MIG profile such as 1g.10gb, not {shown(name)}")
    return lower


MigProfile = Annotated[
    str, AfterValidator(check_profile), Field(json_schema_extra={"maxLength": _LONGEST})
]
"""Name of a profile, such as 1g.10gb."""


def profile_of(device: str) -> str | None:
    """Return the profile in the name of a MIG device, ``NVIDIA H100 80GB HBM3 MIG 1g.10gb``.

    None for one that has only a part of an instance, such as ``MIG 1c.3g.40gb``.
    """
    word = device.casefold().split()[-1].partition("+")[0] if device.split() else ""
    return word if _PROFILE.fullmatch(word) else None


def profile_gb(profile: str) -> float:
    """Return the GB in the name of a profile."""
    match = _PROFILE.fullmatch(profile)
    if not match:
        raise ValueError(f"expected a MIG profile such as 1g.10gb, not {shown(profile)}")
    return float(match.group(2))


def profile_slices(profile: str) -> int:
    """Return how many of the eight slices an instance of a profile has, by its compute slices."""
    match = _PROFILE.fullmatch(profile)
    if not match:
        raise ValueError(f"expected a MIG profile such as 1g.10gb, not {shown(profile)}")
    compute = int(match.group(1))
    lengths = [length for of, length, _ in _SIX_SHAPES if of == compute]
    return min(lengths, default=min(compute, SLICES))


def positions_of(gpu_type: str, vram: float) -> MigPositions | None:
    """Return all positions on a GPU of this model and size in GB; None where it is not listed."""
    for (model, size), memory in _MEMORY.items():
        if model == gpu_type.upper() and abs(vram - size) < _SAME_SIZE * size:
            return {
                f"{compute}g.{gb}gb": tuple(slice_mask(start, length) for start in starts)
                for (compute, length, starts), gb in zip(_SIX_SHAPES, memory, strict=True)
            }
    return None


def listed_models() -> tuple[str, ...]:
    """Return the models that have positions here, such as ``H100-80GB``."""
    return tuple(f"{model}-{size}GB" for model, size in _MEMORY)


def slice_mask(start: int, length: int) -> int:
    """Return the set of `length` slices from `start` on."""
    return ((1 << length) - 1) << start


def first_slice(slices: int) -> int:
    """Return the lowest slice of a set. Raises ValueError for the empty set."""
    if slices <= 0:
        raise ValueError("no slices")
    return (slices & -slices).bit_length() - 1


def slices_gb(vram: float, slices: int) -> float:
    """Return the GB, in whole MB, that a set of slices has of a GPU's `vram`.

    What instances of one GPU have together is never more than the GPU has.
    """
    return round(vram * 1000) * slices.bit_count() // SLICES / 1000
