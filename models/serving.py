"""Models that are served, the programs that serve them, and one engine as a job runs it."""

import os
import re
import string
from collections.abc import Iterator, Mapping
from datetime import timedelta
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final, Self

from pydantic import Field, ValidationInfo, model_validator

from longshore.models.base import Frozen, Name, Reason, ShortText, Text, Wire, known_or
from longshore.models.bounds import Most, is_taken, json_bytes, largest
from longshore.models.code import Sha256
from longshore.models.counts import DIGITS, Count
from longshore.models.data import OF_A_JOB, why_no_host, why_not_fetched
from longshore.models.mistakes import Mistake, refuse
from longshore.models.model_memory import (
    MOST_CONCURRENCY,
    MOST_CONTEXT,
    CacheType,
    Serving,
)
from longshore.models.units import GB, Duration
from longshore.models.visible import brief, shown

Template = Annotated[tuple[Text, ...], Field(fail_fast=True), Most(1_000)]
"""Arguments of a program, with places in braces: see `PLACES`."""
Adapters = Annotated[dict[Name, ShortText], Most(100)]

PLACES: Final[Mapping[str, str]] = {
    "model": "the path of the model: its file, the first of several, or its folder",
    "name": "the name that requests give",
    "host": "the address to listen on",
    "port": "the port to listen on; free when the engine starts",
    "context": "tokens of the longest request",
    "total_context": "the same for all requests at a time",
    "concurrency": "requests at a time",
    "cache_type": "number format of the KV cache",
    "batch": "tokens of prompts that are computed at a time",
    "gpus": "GPUs of this engine",
    "tensor_split": "the same parts of the layers for each of its GPUs, as llama.cpp wants them",
    "memory_utilization": "the part of each GPU's memory that it may use, rounded down",
}
"""What may stand in braces in the command of a runtime."""
PLACES_OF_ADAPTERS: Final[Mapping[str, str]] = {
    "adapter": "the path of a LoRA adapter",
    "adapter_name": "the name that requests give to it",
}
LLAMA_CPP: Final = "llama.cpp"
_RELATIVE = ("./", "../")
START_LIMIT: Final = timedelta(minutes=10)
STALE_AFTER: Final = timedelta(seconds=10)
"""An engine of which nobody has asked anything for so long may leave for others."""
MOST_ENGINE_BYTES: Final = 130_000
"""Of an engine as JSON: its process finds it in a variable, and Linux takes 131,071 bytes of one
(execve(2))."""


class MemoryRule(StrEnum):
    """Where the memory of an engine comes from."""

    HEADER = "header"
    """From the header of the model's file (GGUF)."""
    STATED = "stated"
    """The model says it (`memory`)."""


class Split(StrEnum):
    """How one engine spreads over several GPUs."""

    NONE = "none"
    """It does not: one GPU."""
    HEADS = "heads"
    """Tensor parallel: each GPU has as many attention heads as each other."""
    LAYERS = "layers"
    """Each GPU has some of the layers."""


def places_of(template: str) -> Iterator[str]:
    """Yield the names in braces of an argument. Raises ValueError where the braces do not match.

    ``{{`` and ``}}`` are braces themselves.
    """
    for _, name, form, conversion in string.Formatter().parse(template):
        if name is not None:
            if form or conversion or not re.fullmatch(r"[a-z_]+", name, re.ASCII):
                raise ValueError(f"{{{name}}} is no place: write {{model}}, {{port}} and so on")
            yield name


class Runtime(Frozen):
    """A program that serves a model by the protocol of OpenAI."""

    name: Name
    command: Template
    """What to run: arguments with places in braces, such as `[llama-server, -m, "{model}", --port,
    "{port}"]`. A port is needed."""
    with_adapters: Template = ()
    """Further arguments where the model has LoRA adapters, once."""
    adapter: Template = ()
    """Further arguments for each adapter, with `{adapter}` and `{adapter_name}`."""
    memory: MemoryRule = MemoryRule.STATED
    """Where its memory comes from."""
    split: Split = Split.NONE
    """How it spreads over several GPUs."""
    concurrency: Count = Field(default=1, ge=1, le=MOST_CONCURRENCY)
    """Requests at a time of a model that does not say it."""

    @model_validator(mode="after")
    def _places_are_known(self) -> Self:
        refuse(list(self._mistakes()))
        return self

    def _mistakes(self) -> Iterator[Mistake]:
        asked = set[str]()
        for field, known in (
            ("command", PLACES),
            ("with_adapters", PLACES),
            ("adapter", PLACES | PLACES_OF_ADAPTERS),
        ):
            for at, argument in enumerate(getattr(self, field)):
                try:
                    names = tuple(places_of(argument))
                except ValueError as error:
                    yield Mistake((field, at), f"{brief(argument)}: {error}")
                    continue
                for name in names:
                    if name not in known:
                        listed = ", ".join(f"{{{each}}}" for each in known)
                        yield Mistake((field, at), f"{{{name}}} is no place; there are {listed}")
                if field == "command":
                    asked |= set(names)
        if not self.command:
            yield Mistake(("command",), "is empty: give a program and its arguments")
        elif "port" not in asked:
            yield Mistake(("command",), "has no {port}: without it nobody knows where it listens")


class ModelSpec(Frozen):
    """A model as it is served: where its files are, which runtime serves it, and how."""

    name: Name
    """What requests call it."""
    source: Annotated[ShortText, Field(min_length=1)]
    """Its file, the first of several, or its folder: a path that nodes have, or a URL (s3, gs, az,
    https, file) that they fetch once and keep as long as there is room. One that begins with ./ is
    seen from the file that says it, and has to be at the same place on nodes."""
    sha256: Sha256 | None = None
    """Digest of the file; each engine checks it as it starts."""
    runtime: Name = LLAMA_CPP
    """Which program serves it: `longshore runtimes`."""
    context: Annotated[int, Field(ge=1, le=MOST_CONTEXT), DIGITS] | None = None
    """Tokens of the longest request, with its answer; 4,096, or what the model was trained on
    where that is less."""
    concurrency: Annotated[int, Field(ge=1, le=MOST_CONCURRENCY), DIGITS] | None = None
    """Requests at a time; the runtime's own when left out."""
    cache_type: CacheType = CacheType.F16
    """The number format of the KV cache."""
    batch: Count = Field(default=Serving().batch, ge=1, le=65_536)
    """Tokens of prompts that are computed at a time."""
    overhead: GB = Field(default=Serving().overhead, ge=0)
    """What the engine itself takes of each GPU."""
    memory: GB | None = None
    """GPU memory in all, where the runtime does not say it by the file's header."""
    gpus: Annotated[int, Field(ge=1, le=1_024), DIGITS] | None = None
    """On how many GPUs of a node; the fewest that have room when left out."""
    adapters: Adapters = Field(default_factory=dict[str, str])
    """LoRA adapters by name, each a path or a URL."""
    args: Template = ()
    """Further arguments of the runtime, as they are."""
    pinned: bool = False
    """Never evicted for another model."""
    prewarm: bool = False
    """Loaded where GPU memory is free, before anybody asks: until then an engine of it has nobody
    stopped and nothing bought, and leaves for whoever wants its memory."""
    start_limit: Duration = START_LIMIT
    """An engine that has not answered by then has failed. While it waits for others that load on
    its GPUs it does not count."""

    @model_validator(mode="after")
    def _fields_agree(self, info: ValidationInfo) -> Self:
        refuse(list(self._mistakes(taken=is_taken(info))))
        return self

    def seen_from(self, folder: Path) -> Self:
        """Return it with the paths that begin with ./ as they are seen from a folder."""

        def seen(source: str) -> str:
            if not source.startswith(_RELATIVE):
                return source
            return os.path.normpath(folder.absolute() / source)

        adapters = {name: seen(source) for name, source in self.adapters.items()}
        return self.model_copy(update={"source": seen(self.source), "adapters": adapters})

    def _mistakes(self, *, taken: bool) -> Iterator[Mistake]:
        if why := _no_place(self.source, taken=taken):
            yield Mistake(("source",), why)
        for name, source in self.adapters.items():
            if why := _no_place(source, taken=taken):
                yield Mistake(("adapters", name), why)
            if name == self.name:
                yield Mistake(("adapters", name), "is the name of the model: take another one")
        if self.memory is not None and self.memory <= 0:
            yield Mistake(("memory",), "must be more than 0")
        if self.start_limit <= timedelta(0):
            yield Mistake(("start_limit",), "must be longer than 0")


def is_url(source: str) -> bool:
    """Return whether nodes fetch it; else it is a path of theirs."""
    return "://" in source


def _no_place(source: str, *, taken: bool) -> str:
    if is_url(source) or source.startswith(OF_A_JOB):
        why = next(why_not_fetched(source, "or a path"), "")
        return why if why or taken else why_no_host(source)
    if not source.startswith(("/", "~/", *_RELATIVE)):
        return f"{shown(source)} is a path, and has to begin with /, ~/ or ./"
    return ""


MODEL: Final = "model"
"""Name of the model among the data of its job."""


def adapter_data(name: str) -> str:
    """Return the name of an adapter among the data of its job."""
    return f"adapter-{name}"


SPLIT: Final = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf", re.ASCII | re.DOTALL)
"""How llama.cpp names the files of a model that is split (src/llama.cpp, `llama_split_path`)."""
MOST_FILES = 1_000
"""Of one model."""


def files_of(source: str) -> dict[str, str]:
    """Return the files of a model of which one is named, each with its name among the data of its
    job, the first first; one alone where it is not split."""
    found = SPLIT.fullmatch(source)
    if found is None or not 1 <= (number := int(found[3])) <= MOST_FILES:
        return {MODEL: source}
    parts = [f"{found[1]}-{part:05}-of-{found[3]}.gguf" for part in range(1, number + 1)]
    return {MODEL: parts[0]} | {f"{MODEL}-{n}": each for n, each in enumerate(parts[1:], 2)}


def fetched(model: ModelSpec) -> dict[str, str]:
    """Return what nodes fetch for a model: the name among the data of its job, and the URL."""
    named = files_of(model.source)
    named |= {adapter_data(name): source for name, source in model.adapters.items()}
    return {name: source for name, source in named.items() if is_url(source)}


class EngineStage(StrEnum):
    """Where an engine is in its life."""

    LOADING = "loading"
    """Its program runs and has not answered yet."""
    READY = "ready"
    """It has answered with a token."""
    DRAINING = "draining"
    """It was asked to stop, and ends what it has begun."""
    FAILED = "failed"
    """It ended by itself, or did not answer within its limit."""


class EngineReport(Wire):
    """What an engine says of itself; at the most a few kB."""

    stage: Annotated[EngineStage, known_or(EngineStage, EngineStage.LOADING)]
    endpoint: Annotated[ShortText, Field(max_length=300)] = ""
    """Where it answers: ``http://127.0.0.1:40123/v1``."""
    memory: int = Field(default=0, ge=0, le=10**15)
    """Bytes of GPU memory that it really takes, of main memory where its GPUs are simulated; 0
    where nobody can say."""
    load_seconds: float = Field(default=0.0, ge=0, le=1e8, allow_inf_nan=False)
    """From the start of its program to its first token."""
    idle: bool = False
    """Whether nobody has asked it anything for `STALE_AFTER`."""
    uses: Annotated[int, Field(ge=0, le=10**12)] = 0
    """How often it was asked again after it had been idle, or for the first time."""
    message: Reason = ""
    """Why it failed, with the last lines that it wrote; of one that loads, for whom it waits."""


class EngineSize(Frozen):
    """On how many GPUs of a node one engine may run."""

    gpus: Count = Field(ge=1, le=1_024)
    memory: Count = Field(ge=1, le=10**12)
    """MB on each of them."""


class EngineSpec(Frozen):
    """What a job serves: all that its node needs to start the engine, as it was when the job was
    made."""

    model: ModelSpec
    """With context and concurrency."""
    runtime: Runtime
    memory: Count = Field(ge=1, le=10**12)
    """MB on each of its GPUs."""
    service: Name | None = None
    """Which service it is of: its workflow hears when the engine is ready."""

    @property
    def too_large(self) -> str:
        """Why its process could not be given it; empty where it can."""
        found = json_bytes(self)
        if found <= MOST_ENGINE_BYTES:
            return ""
        parts = {"model": self.model, "runtime": self.runtime}
        return (
            f"the engine has {found:,} bytes as JSON ({largest(parts)}); {MOST_ENGINE_BYTES:,} is "
            "the most: put what is long into a file that its program reads"
        )

    @property
    def text(self) -> str:
        """What runs, in a few words."""
        return f"{self.model.name} on {self.runtime.name}"

    def of_size(self, size: EngineSize) -> "EngineSpec":
        """Return it for so many GPUs."""
        model = self.model.model_copy(update={"gpus": size.gpus})
        return self.model_copy(update={"model": model, "memory": size.memory})
