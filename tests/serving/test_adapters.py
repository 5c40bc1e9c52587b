"""LoRA adapters are for models whose tensors they fit, as llama.cpp loads them."""

from pathlib import Path

import pytest

from longshore.activities.serving.examination import examine
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
