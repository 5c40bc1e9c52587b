"""llama.cpp's own server out of the package `xllamacpp`, with the options of `llama-server` that
the built-in runtime gives, and a few that a model may: for nodes that have no `llama-server`."""

import argparse
import importlib
import os
import signal
import sys
from typing import Any, NoReturn

_TYPES = {
    "f32": 0, "f16": 1, "q4_0": 2, "q4_1": 3, "q5_0": 6, "q5_1": 7, "q8_0": 8, "bf16": 30,
}  # fmt: skip
"""Numbers of ggml's types."""


_FLASH = {"on": "ENABLED", "off": "DISABLED", "auto": "AUTO"}


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Say who refuses it: the model's `args` are right for the server that this stands for."""
        self.exit(
            2,
            "this node has no llama-server, and llama.cpp's server out of the package xllamacpp "
            f"takes few options: {message}. Install llama-server on the node, or leave them out\n",
        )


def _parts(text: str) -> tuple[float, ...]:
    return tuple(float(part) for part in text.split(","))


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(description="Serve a GGUF model.", allow_abbrev=False)
    parser.add_argument("--model", required=True)
    parser.add_argument("--alias", required=True)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--ctx-size", type=int, required=True)
    parser.add_argument("--parallel", type=int, default=1)
    parser.add_argument("--cache-type-k", choices=_TYPES, default="f16")
    parser.add_argument("--cache-type-v", choices=_TYPES, default="f16")
    parser.add_argument("--ubatch-size", type=int, default=512)
    parser.add_argument("--n-gpu-layers", type=int, default=999)
    parser.add_argument("--tensor-split", type=_parts, default=())
    parser.add_argument("--fit", choices=("on", "off"), default="off")
    parser.add_argument("--cache-ram", type=int, default=0)
    parser.add_argument("--lora", action="append", default=[])
    parser.add_argument("--threads", type=int)
    parser.add_argument("--batch-size", type=int)
    parser.add_argument("--flash-attn", choices=_FLASH, default="auto")
    parser.add_argument("--chat-template", default="")
    parser.add_argument("--rope-freq-base", type=float, default=0.0)
    parser.add_argument("--rope-freq-scale", type=float, default=0.0)
    return parser


def main() -> int:
    given = _parser().parse_args()
    try:
        llama: Any = importlib.import_module("xllamacpp")
    except ModuleNotFoundError:
        print(
            "this node has neither llama-server nor the package xllamacpp: install llama.cpp, or "
            "pip install 'longshore[llama]'",
            file=sys.stderr,
        )
        return 127
    asked = llama.CommonParams()
    asked.model.path = given.model
    asked.model_alias = {given.alias}
    asked.hostnames, asked.port = [given.host], given.port
    asked.n_ctx, asked.n_parallel = given.ctx_size, given.parallel
    asked.n_ubatch = given.ubatch_size
    asked.n_batch = max(given.ubatch_size, given.batch_size or asked.n_batch)
    asked.cache_type_k = llama.ggml_type(_TYPES[given.cache_type_k])
    asked.cache_type_v = llama.ggml_type(_TYPES[given.cache_type_v])
    flash = f"LLAMA_FLASH_ATTN_TYPE_{_FLASH[given.flash_attn]}"
    asked.flash_attn_type = llama.llama_flash_attn_type[flash]
    asked.chat_template = given.chat_template
    asked.rope_freq_base, asked.rope_freq_scale = given.rope_freq_base, given.rope_freq_scale
    asked.n_gpu_layers = given.n_gpu_layers
    if len(given.tensor_split) > 1:
        others = len(asked.tensor_split) - len(given.tensor_split)
        asked.tensor_split = [*given.tensor_split, *[0.0] * others]
    asked.fit_params = given.fit == "on"
    asked.cache_ram_mib = given.cache_ram
    asked.cors_origins = os.environ.get("LLAMA_ARG_CORS_ORIGINS", "localhost")
    asked.ui = False
    asked.no_extra_bufts = True  # no second copy of the weights, which no estimate knows
    if threads := given.threads or int(os.environ.get("LLAMA_ARG_THREADS", "0")):
        asked.cpuparams.n_threads = threads
    if given.lora:
        asked.lora_adapters = [llama.CommonAdapterLoraInfo(path, 1.0) for path in given.lora]
    try:
        server = llama.Server(asked)
    except RuntimeError as error:  # its log says why
        print(f"llama.cpp cannot serve {given.model}: {error}", file=sys.stderr)
        return 1
    print(f"listening on {server.listening_address}", flush=True)
    signal.sigwait({signal.SIGTERM, signal.SIGINT})
    # The end of its own waits for all who are connected, and answers none of them. So that who
    # has asked at this moment knows at once, and asks another engine, their connections end here.
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
    sys.exit(main())
