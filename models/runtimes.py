"""The runtimes that are known without being added."""

from collections.abc import Mapping
from typing import Final

from longshore.models.model_memory import CacheType
from longshore.models.serving import LLAMA_CPP, MemoryRule, Runtime, Split

_LLAMA = Runtime(
    name=LLAMA_CPP,
    # `--fit off`: else it makes the context smaller than asked where memory lacks, without a word.
    # `--cache-ram 0`: else it keeps old prompts in up to 8 GiB of main memory.
    # `--tensor-split`: else an emptier GPU gets more layers, and more than its engine holds there.
    command=(
        "llama-server", "--model", "{model}", "--alias", "{name}", "--host", "{host}",
        "--port", "{port}", "--ctx-size", "{total_context}", "--parallel", "{concurrency}",
        "--cache-type-k", "{cache_type}", "--cache-type-v", "{cache_type}",
        "--ubatch-size", "{batch}", "--n-gpu-layers", "999", "--fit", "off", "--cache-ram", "0",
        "--tensor-split", "{tensor_split}",
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
        # Else every web page may read its answers.
        "--allowed-origins", '["http://localhost"]',
    ),
    with_adapters=("--enable-lora", "--lora-modules"),
    adapter=("{adapter_name}={adapter}",),
    split=Split.HEADS,
    concurrency=256,
)  # fmt: skip
# It knows models by name, so the file becomes one: a copy of it in a folder for temporary files,
# as long as the engine runs. It takes what else it needs from its environment alone.
_OLLAMA_SCRIPT = """
case $3 in
*:*) OLLAMA_HOST="[$3]:$4" ;;
*) OLLAMA_HOST="$3:$4" ;;
esac
export OLLAMA_HOST OLLAMA_CONTEXT_LENGTH="$5" OLLAMA_NUM_PARALLEL="$6"
export OLLAMA_KV_CACHE_TYPE="$7" OLLAMA_FLASH_ATTENTION=1
export OLLAMA_KEEP_ALIVE=-1 OLLAMA_MAX_LOADED_MODELS=1 OLLAMA_NOPRUNE=1
OLLAMA_MODELS=$(mktemp -d) || exit 1
export OLLAMA_MODELS
ollama serve &
server=$!
trap 'kill $server' TERM INT
trap 'rm -rf "$OLLAMA_MODELS"' EXIT
until ollama list >/dev/null 2>&1; do
    kill -0 $server || exit 1
    sleep 0.1
done
printf 'FROM %s\\n' "$1" >"$OLLAMA_MODELS/Modelfile"
if ! ollama create "$2" -f "$OLLAMA_MODELS/Modelfile"; then
    kill $server
    wait $server
    exit 1
fi
wait $server
code=$?
# A signal has ended the wait, and not yet the server.
wait $server 2>/dev/null
exit $code
"""
"""Arguments: the file, the name, the address, the port, and what is said of requests."""
_OLLAMA = Runtime(
    name="ollama",
    command=(
        "sh", "-c", _OLLAMA_SCRIPT, "ollama", "{model}", "{name}", "{host}", "{port}",
        "{context}", "{concurrency}", "{cache_type}",
    ),
    memory=MemoryRule.HEADER,
    split=Split.LAYERS,
    concurrency=2,
)  # fmt: skip

CACHE_TYPES: Final[Mapping[str, frozenset[CacheType]]] = {
    # It takes f16 for any other, with a line in its log (SupportsKVCacheType in its fs/ggml).
    _OLLAMA.name: frozenset({CacheType.F16, CacheType.Q8_0, CacheType.Q4_0}),
}
"""The number formats of a KV cache that a runtime takes, where it does not take each."""
BUILT_IN: Final[Mapping[str, Runtime]] = {each.name: each for each in (_LLAMA, _VLLM, _OLLAMA)}
SLOTS: Final = "/slots"
"""Where llama.cpp lists its slots, with the request that each had last."""
METRICS: Final = "/metrics"
"""Where vLLM counts its requests, as text for Prometheus."""
REQUESTS: Final[Mapping[str, str]] = {LLAMA_CPP: SLOTS, _VLLM.name: METRICS}
"""Where an engine says which requests it had, by its runtime."""
