"""The runtimes that are known without being added."""

from collections.abc import Mapping
from typing import Final

from longshore.models.serving import LLAMA_CPP, MemoryRule, Runtime, Split

_LLAMA = Runtime(
    name=LLAMA_CPP,
    # `--fit off`: else it makes the context smaller than asked where memory lacks, without a word.
    # `--cache-ram 0`: else it keeps old prompts in up to 8 GiB of main memory.
    command=(
        "llama-server", "--model", "{model}", "--alias", "{name}", "--host", "{host}",
        "--port", "{port}", "--ctx-size", "{total_context}", "--parallel", "{concurrency}",
        "--cache-type-k", "{cache_type}", "--cache-type-v", "{cache_type}",
        "--ubatch-size", "{batch}", "--n-gpu-layers", "999", "--fit", "off", "--cache-ram", "0",
    ),
    adapter=("--lora", "{adapter}"),
    memory=MemoryRule.HEADER,
    split=Split.LAYERS,
)  # fmt: skip
_VLLM = Runtime(
    name="vllm",
    command=(
        "vllm", "serve", "{model}", "--served-model-name", "{name}", "--host", "{host}",
        "--port", "{port}", "--max-model-len", "{context}", "--max-num-seqs", "{concurrency}",
        "--tensor-parallel-size", "{gpus}", "--gpu-memory-utilization", "{memory_utilization}",
    ),
    with_adapters=("--enable-lora", "--lora-modules"),
    adapter=("{adapter_name}={adapter}",),
    split=Split.HEADS,
    concurrency=256,
)  # fmt: skip

BUILT_IN: Final[Mapping[str, Runtime]] = {each.name: each for each in (_LLAMA, _VLLM)}
