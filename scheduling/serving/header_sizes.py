"""Sizes that the header of a GGUF file says of its model."""

from longshore.models.errors import UnsatisfiableError
from longshore.models.gguf import GGUFHeader, Value
from longshore.models.text import count
from longshore.models.visible import name_of_place


def named(header: GGUFHeader) -> str:
    """Return the architecture as a message says it: whoever wrote the file chose its letters."""
    return name_of_place(header.architecture)


def needed_size(header: GGUFHeader, key: str) -> int:
    """Return a size that is above 0. Raises UnsatisfiableError where the header says none."""
    if (size := size_of(header, key, 0)) < 1:
        raise UnsatisfiableError(
            f"{named(header)}.{key} is missing, or not above 0: without it nobody knows how "
            "much memory the model needs"
        )
    return size


def size_of(header: GGUFHeader, key: str, default: int) -> int:
    """Return a size, the largest of a list; `default` where the header says nothing of it."""
    value = header.of_model(key)
    if value is None or value == ():
        return default
    values = value if isinstance(value, tuple) else (value,)
    return max(whole(header, key, each) for each in values)


def whole(header: GGUFHeader, key: str, value: Value) -> int:
    """Return a value that is a size. Raises UnsatisfiableError where it cannot be one."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**40:
        raise UnsatisfiableError(
            f"{named(header)}.{key} is not a whole number from 0 on that a model could have: "
            "nobody knows how much memory it needs"
        )
    return value


def per_layer(header: GGUFHeader, key: str, layers: int) -> tuple[int, ...]:
    """Return a number for each layer: the header has one for all, or a list, or none."""
    value = header.of_model(key)
    if isinstance(value, tuple):
        found = tuple(whole(header, key, each) for each in value)
        if len(found) < layers:
            raise UnsatisfiableError(
                f"{named(header)}.{key} has a number for {count(len(found), 'layer')} of {layers}"
            )
        return found[:layers]
    return (size_of(header, key, 0),) * layers
