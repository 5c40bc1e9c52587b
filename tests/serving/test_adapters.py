"""LoRA adapters are for models whose tensors they fit, as llama.cpp loads them."""

from pathlib import Path

import pytest

from longshore.activities.serving.examination import examine
from longshore.models.model_registry import ModelFacts
from longshore.models.runtimes import BUILT_IN
from longshore.models.serving import LLAMA_CPP, ModelSpec
from longshore.scheduling.serving.adapters import why_unfit
from tests.support.gguf_models import Model, write, write_adapter

UP = "blk.0.ffn_up.weight"
MODEL = {UP: (64, 128), "token_embd.weight": (64, 320), "blk.0.ffn_up_exps.weight": (64, 128, 8)}


def lora(name: str, first: tuple[int, ...], second: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    return {f"{name}.lora_a": first, f"{name}.lora_b": second}


@pytest.mark.parametrize(
    ("adapter", "why"),
    [
        (lora(UP, (64, 4), (4, 128)), ""),
        (lora(UP, (64,), (1, 128)), ""),
        (lora("token_embd.weight", (4, 320), (4, 64)), ""),
        (lora("blk.0.ffn_up_exps.weight", (64, 4, 8), (4, 128, 8)), ""),
        ({"blk.0.attn_norm.weight": (7,), **lora(UP, (64, 4), (4, 128))}, ""),
        (
            lora(UP, (32, 4), (4, 128)),
            f"the tensor '{UP}' has 64 x 128 numbers, and it changes 32 x 128",
        ),
        (
            lora(UP, (64, 4), (4, 96)),
            f"the tensor '{UP}' has 64 x 128 numbers, and it changes 64 x 96",
        ),
        (
            lora("token_embd.weight", (4, 100), (4, 64)),
            "the tensor 'token_embd.weight' has 64 x 320 numbers, and it changes 64 x 100",
        ),
        (lora(UP, (64, 4), (8, 128)), f"the ranks of '{UP}' are 4 and 8: one is right"),
        (
            lora("blk.1.ffn_up.weight", (64, 4), (4, 128)),
            "it changes the tensor 'blk.1.ffn_up.weight', which the model lacks",
        ),
        ({f"{UP}.lora_a": (64, 4)}, f"it has no '{UP}.lora_b'"),
        ({f"{UP}.lora_b": (4, 128)}, f"it has no '{UP}.lora_a'"),
    ],
)
def test_an_adapter_fits_the_tensors_that_it_changes(
    adapter: dict[str, tuple[int, ...]], why: str
) -> None:
    assert why_unfit(adapter, MODEL) == why


@pytest.mark.parametrize("width", [32, 64])
def test_a_model_takes_adapters_of_its_own_width(tmp_path: Path, width: int) -> None:
    model = write(Model(width=width), tmp_path / "model.gguf")
    formal = write_adapter(tmp_path / "formal.gguf")
    spec = ModelSpec(name="m", source=str(model), adapters={"formal": str(formal)})
    found = examine(spec, BUILT_IN[LLAMA_CPP])
    if width == 64:
        assert found.problems == ()
        return
    assert found.problems == (
        "adapters.formal: 'formal.gguf' is an adapter for another model: the tensor "
        "'blk.0.attn_q.weight' has 32 x 32 numbers, and it changes 64 x 64",
    )


@pytest.mark.parametrize("of_before", [False, True], ids=["now", "earlier version"])
@pytest.mark.parametrize("away", [("formal",), ("terse",), ("formal", "terse"), ("m", "terse")])
def test_the_memory_of_adapters_that_are_away_stays_known(
    tmp_path: Path, away: tuple[str, ...], of_before: bool
) -> None:
    model = write(Model(), tmp_path / "m.gguf")
    adapters = {
        name: str(write_adapter(tmp_path / f"{name}.gguf")) for name in ("formal", "terse")
    }
    spec = ModelSpec(name="m", source=str(model), memory=3, adapters=adapters)
    known = examine(spec, BUILT_IN[LLAMA_CPP]).facts
    assert known is not None
    each = known.memory.adapters // 2
    assert known.adapter_sizes == {"formal": each, "terse": each}
    if of_before:
        stored = known.model_dump(exclude={"adapter_sizes"})
        known = ModelFacts.as_known(stored)
    for name in away:
        (tmp_path / f"{name}.gguf").unlink()
    found = examine(spec, BUILT_IN[LLAMA_CPP], known=known).facts
    assert found is not None
    assert found.is_shaped_as(known)
    assert found.memory.adapters == 2 * each > 0
    again = examine(spec, BUILT_IN[LLAMA_CPP], known=found.after(known, 2)).facts
    assert again is not None
    assert again.is_shaped_as(known)
    fewer = spec.model_copy(update={"adapters": {"formal": adapters["formal"]}})
    less = examine(fewer, BUILT_IN[LLAMA_CPP], known=found).facts
    assert less is not None
    assert of_before or less.memory.adapters == each
