"""Writes the two models of examples/serve.yaml: tiny llamas with random weights.

They load in a tenth of a second and answer with nonsense, the same each time. Needs the package
`gguf`, which the development group has: `python examples/models/write_models.py`.
"""

from pathlib import Path

import gguf
import numpy as np

LAYERS, WIDTH, HEADS, INNER, CONTEXT = 1, 32, 2, 64, 2048
WORDS = [f"▁{word}" for word in ("the", "ship", "is", "at", "port", "and", "waits", "for", "a")]


def write(path: Path, seed: int) -> None:
    """Write one model of about 60 kB."""
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_name(path.stem)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_rope_dimension_count(WIDTH // HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *WORDS]
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores([0.0] * len(tokens))
    writer.add_token_types([2, 3, 3] + [6] * 256 + [1] * len(WORDS))
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    random = np.random.default_rng(seed)

    def add(name: str, *shape: int) -> None:
        weights = random.standard_normal(shape, np.float32) * np.float32(0.3)
        # Words are worth more than bytes: what it says can be read.
        if name == "output.weight":
            weights[: 3 + 256] *= np.float32(0.05)
        writer.add_tensor(name, weights.astype(np.float16))

    add("token_embd.weight", len(tokens), WIDTH)
    writer.add_tensor("output_norm.weight", np.ones(WIDTH, np.float32))
    add("output.weight", len(tokens), WIDTH)
    for layer in range(LAYERS):
        block = f"blk.{layer}"
        writer.add_tensor(f"{block}.attn_norm.weight", np.ones(WIDTH, np.float32))
        writer.add_tensor(f"{block}.ffn_norm.weight", np.ones(WIDTH, np.float32))
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            add(f"{block}.{name}.weight", WIDTH, WIDTH)
        add(f"{block}.ffn_gate.weight", INNER, WIDTH)
        add(f"{block}.ffn_up.weight", INNER, WIDTH)
        add(f"{block}.ffn_down.weight", WIDTH, INNER)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    here = Path(__file__).parent
    write(here / "pilot.gguf", seed=1)
    write(here / "tally.gguf", seed=2)
