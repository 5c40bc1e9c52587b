"""Whether a LoRA adapter is for a model: by the shapes of its tensors, as llama.cpp loads it."""

from collections.abc import Mapping

from longshore.models.visible import shown

Shape = tuple[int, ...]
"""The length of a row first."""
_PARTS = (".lora_a", ".lora_b")
"""End the names of the two matrices that change a tensor of the model: the first makes its rows
short, and the second makes its outputs of these."""
_EMBEDDING = "token_embd.weight"
"""Its two matrices are the other way round (src/llama-adapter.cpp)."""


def why_unfit(adapter: Mapping[str, Shape], model: Mapping[str, Shape]) -> str:
    """Return what speaks against an adapter with these tensors; empty where it fits the model."""
    for name in dict.fromkeys(_base_of(each) for each in adapter):
        if name and (why := _why_unfit(name, adapter, model)):
            return why
    return ""


def _base_of(name: str) -> str:
    """Return the tensor of the model that one of an adapter changes; empty of any other."""
    return name[: -len(_PARTS[0])] if name.endswith(_PARTS) else ""


def _why_unfit(name: str, adapter: Mapping[str, Shape], model: Mapping[str, Shape]) -> str:
    first, second = (adapter.get(f"{name}{part}") for part in _PARTS)
    if first is None or second is None:
        lacks = _PARTS[0] if first is None else _PARTS[1]
        return f"it has no {shown(name + lacks)}"
    if (wanted := model.get(name)) is None:
        return f"it changes the tensor {shown(name)}, which the model lacks"
    (row, rank), (of_rank, outputs) = _matrix(first), _matrix(second)
    if name.endswith(_EMBEDDING):
        # Both keep their short side first.
        row, rank, of_rank, outputs = outputs, of_rank, row, rank
    if (row, outputs) != _matrix(wanted):
        has = "{} x {}".format(*_matrix(wanted))
        return f"the tensor {shown(name)} has {has} numbers, and it changes {row} x {outputs}"
    if rank != of_rank:
        return f"the ranks of {shown(name)} are {rank} and {of_rank}: one is right"
    return ""


def _matrix(shape: Shape) -> tuple[int, int]:
    return (shape[0], shape[1] if len(shape) > 1 else 1)
