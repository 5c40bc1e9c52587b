"""A model is looked at before it is stored: its files, as far as they can be read from here."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from longshore.activities.serving.model_facts import (
    ReadAdapter,
    ReadModel,
    Told,
    digest_of,
    path_of,
    place_of,
    read_adapter,
    read_adapter_folder,
    read_files,
    size_of,
)
from longshore.activities.serving.model_files import is_here
from longshore.activities.serving.model_folder import ENDING, is_folder
from longshore.models.errors import (
    DamagedError,
    NotFoundError,
    StoreError,
    UnsatisfiableError,
)
from longshore.models.model_memory import CacheType, ModelMemory
from longshore.models.model_registry import ModelFacts, serving_of
from longshore.models.runtimes import CACHE_TYPES
from longshore.models.serving import (
    MODEL,
    EngineSpec,
    MemoryRule,
    ModelSpec,
    Runtime,
    Split,
    files_of,
    places_of,
)
from longshore.models.text import count, listed
from longshore.models.units import format_bytes, format_gb
from longshore.scheduling.serving.splits import why_not_so_many

_WRONG = (DamagedError, NotFoundError, UnsatisfiableError)
"""What is said of a file that was read: it is no use, wherever one looks from."""

READ_FOR_A_DIGEST = 256_000_000
"""Bytes of a file behind a URL."""
_PLACES_OF: Mapping[str, tuple[str, ...]] = {
    "context": ("context", "total_context"),
    "concurrency": ("concurrency", "total_context"),
    "cache_type": ("cache_type",),
    "batch": ("batch",),
}
"""Where a command may have what a model states."""
_MOST_MEMORY = 10**18
"""Bytes of a model: of more no engine is made (`EngineSize`)."""


@dataclass(frozen=True)
class Examined:
    """A model with what its files say."""

    spec: ModelSpec
    """With context and concurrency."""
    facts: ModelFacts | None
    problems: tuple[str, ...]
    """Each with its field; it cannot be stored so."""
    warnings: tuple[str, ...]


def examine(
    spec: ModelSpec,
    runtime: Runtime,
    *,
    verify: bool = False,
    told: Told | None = None,
    known: ModelFacts | None = None,
) -> Examined:
    """Look at the files of a model as its runtime wants them.

    With `verify` the digest of a file behind a URL is looked at too; `told` hears how far that
    is. What is `known` of the files at this source stays where they are away now. Blocks. Raises
    StoreError where a file cannot be read that has to be.
    """
    return _Examination(spec, runtime, verify, told or (lambda read, of: None), known).done()


@dataclass
class _Examination:
    spec: ModelSpec
    runtime: Runtime
    verify: bool
    told: Told
    known: ModelFacts | None
    problems: list[str] = field(default_factory=list[str])
    warnings: list[str] = field(default_factory=list[str])
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict[str, tuple[int, ...]])
    """Of the tensors of the model, as far as they are known."""

    def done(self) -> Examined:
        asked = self.spec
        # What else an engine has is a few bytes.
        if why := EngineSpec(model=self.spec, runtime=self.runtime, memory=1).too_large:
            self.problems.append(why)
        if self.spec.concurrency is None:
            said = {"concurrency": self.runtime.concurrency}
            self.spec = self.spec.model_copy(update=said)
        read = self._facts()
        facts = read or self.known
        context = serving_of(self.spec).context
        if self.spec.context is None and facts is not None:
            context = min(context, facts.context or context)
        self.spec = self.spec.model_copy(update={"context": context})
        if not self.problems:
            self._check_digest()
            facts = self._with_adapters(facts)
            self._check_gpus(facts)
            self._check_cache_type()
            self._check_memory(facts if read else None)
            self.warnings += _without_place(asked, self.runtime)
        return Examined(self.spec, facts, tuple(self.problems), tuple(self.warnings))

    @property
    def _is_here(self) -> bool:
        """Whether it can be looked for from here: not a path that nodes alone may have."""
        place = path_of(self.spec.source)
        return place is None or is_here(place)

    def _facts(self) -> ModelFacts | None:
        """Return what the files say; None where they are not here, or of no form that is known."""
        spec = self.spec
        stated = spec.memory is not None
        if not self._is_here:
            if stated:
                self.warnings.append(
                    f"source: {spec.source} is not on this machine: nothing of it was looked at"
                )
            else:
                self.problems.append(
                    f"source: {spec.source} is not on this machine: say with memory (--memory) "
                    "how much GPU memory it needs; `longshore models estimate` tells it where the "
                    "file is"
                )
            return None
        try:
            read = self._read()
            if read is None:
                return None
            said = spec.context is not None
            self.shapes = read.shapes
            return read.facts(serving_of(spec), context_is_said=said)
        except StoreError as error:
            if not stated:
                raise
            self.warnings.append(f"source: nothing of it was looked at: {error}")
        except UnsatisfiableError as error:
            wrong = error.field or "source"
            self.problems.append(f"{wrong}: {str(error).removeprefix(f'{wrong} ')}")
        except _WRONG as error:
            self.problems.append(f"source: {error}")
        return None

    def _read(self) -> ReadModel | None:
        """Return what the files say; None of a form that is not known, where a runtime takes them
        as they are."""
        source = self.spec.source
        if (first := files_of(source)[MODEL]) != source:
            raise DamagedError(f"{source} is not the first file of its model: name {first}")
        place = place_of(source)
        is_safetensors = place.endswith(ENDING) or is_folder(place)
        if self.runtime.memory is not MemoryRule.HEADER:
            return read_files(source) if is_safetensors or place.endswith(".gguf") else None
        read = read_files(source)
        if is_safetensors:
            raise DamagedError(
                f"{source} is of safetensors files, and the runtime {self.runtime.name} wants a "
                "GGUF file"
            )
        return read

    def _check_digest(self) -> None:
        spec = self.spec
        if spec.sha256 is None or not self._is_here:
            return
        if is_folder(place_of(spec.source)):
            self.problems.append(f"sha256: {spec.source} is a folder, and a digest is of a file")
            return
        far = path_of(spec.source) is None and not self.verify
        if far and size_of(spec.source) > READ_FOR_A_DIGEST:
            self.warnings.append(
                f"sha256: a file of over {format_bytes(READ_FOR_A_DIGEST)} behind a URL is not "
                "read for it; --verify does, and each engine does as it starts"
            )
            return
        found = digest_of(spec.source, self.told)
        if found != spec.sha256:
            self.problems.append(f"sha256: is {spec.sha256}, and the file has {found}")

    def _with_adapters(self, facts: ModelFacts | None) -> ModelFacts | None:
        """Look at the adapters, and return the facts with what they take."""
        if self.spec.adapters and not self.runtime.adapter:
            self.problems.append(
                f"adapters: the runtime {self.runtime.name} takes none (its adapter is empty)"
            )
            return facts
        read = dict(self._adapters(facts.memory.architecture if facts else ""))
        if facts is None:
            return None
        sizes = self._adapter_sizes(read)
        memory, size = facts.memory, sum(sizes.values())
        if size or not self.spec.adapters:
            more = {"adapters": size, "total": memory.total - memory.adapters + size}
            memory = memory.model_copy(update=more)
        files = {name: read[name].files if name in read else "" for name in self.spec.adapters}
        of_adapters = {"adapter_files": files, "adapter_sizes": sizes}
        return facts.model_copy(update={"memory": memory, **of_adapters})

    def _adapter_sizes(self, read: Mapping[str, ReadAdapter]) -> dict[str, int]:
        """Return the bytes of each adapter: as read now, or else as they are known."""
        known, sizes = self.known, {name: each.size for name, each in read.items()}
        unread = [name for name in self.spec.adapters if not sizes.get(name)]
        if known is None or not unread:
            return sizes
        if known.adapter_sizes:
            return sizes | {name: known.adapter_sizes.get(name, 0) for name in unread}
        if {*known.adapter_files} == {*self.spec.adapters}:
            # An earlier version kept their sum alone: the rest is of those that are away.
            sizes[unread[0]] = max(known.memory.adapters - sum(sizes.values()), 0)
        return sizes

    def _adapters(self, architecture: str) -> Iterator[tuple[str, ReadAdapter]]:
        """Yield what each adapter says that can be looked at, with its name."""
        for name, source in self.spec.adapters.items():
            place, path = place_of(source), path_of(source)
            if path is not None and not is_here(path):
                self.warnings.append(
                    f"adapters.{name}: {source} is not on this machine: it was not looked at"
                )
                continue
            try:
                if self.runtime.memory is MemoryRule.HEADER or place.endswith(".gguf"):
                    yield name, read_adapter(source, architecture, self.shapes)
                elif is_folder(place):
                    yield name, read_adapter_folder(source)
            except StoreError as error:
                self.warnings.append(f"adapters.{name}: it was not looked at: {error}")
            except _WRONG as error:
                self.problems.append(f"adapters.{name}: {error}")

    def _check_gpus(self, facts: ModelFacts | None) -> None:
        if self.spec.gpus is None:
            return
        heads, key_heads = (facts.heads, facts.key_heads) if facts else (0, 0)
        if why := why_not_so_many(self.spec.gpus, heads, key_heads, self.runtime.split):
            self.problems.append(f"gpus: {why}")
        layers = facts.layers if facts and self.runtime.split is Split.LAYERS else 0
        if 0 < layers < self.spec.gpus:
            self.problems.append(
                f"gpus: is {self.spec.gpus}, and the model has {count(layers, 'layer')}: each GPU "
                "has one at least"
            )

    def _check_cache_type(self) -> None:
        asked, taken = self.spec.cache_type, CACHE_TYPES.get(self.runtime.name)
        if taken is not None and asked not in taken:
            named = listed([each for each in CacheType if each in taken], len(taken))
            self.problems.append(
                f"cache_type: is {asked}, and {self.runtime.name} takes {named} alone: with any "
                "other it has f16, which may need more memory"
            )

    def _check_memory(self, facts: ModelFacts | None) -> None:
        """Hold what is stated against what the files say."""
        spec, memory = self.spec, facts.memory if facts else None
        if memory is not None and memory.total > _MOST_MEMORY:
            self.problems.append(
                f"source: by its header it takes {format_bytes(memory.total)}; "
                f"{format_bytes(_MOST_MEMORY)} are the most"
            )
            return
        if memory is not None and not memory.is_proposal:
            self.warnings += memory.notes
        if spec.memory is None:
            if self.runtime.memory is MemoryRule.STATED:
                self.problems.append(
                    f"memory: is required for the runtime {self.runtime.name}: how much GPU "
                    f"memory it may take in all. {_proposal(memory)}"
                )
            return
        if memory is None:
            return
        if self.runtime.memory is MemoryRule.HEADER and spec.memory * 1e9 < memory.total:
            self.warnings.append(
                f"memory: is {format_gb(spec.memory)}; by its header it takes "
                f"{format_bytes(memory.total)}"
            )
        elif spec.memory * 1e9 < memory.weights:
            self.warnings.append(
                f"memory: is {format_gb(spec.memory)}; its weights alone have "
                f"{format_bytes(memory.weights)} in its files"
            )


def _without_place(asked: ModelSpec, runtime: Runtime) -> Iterator[str]:
    """Yield what to say of what a model states, and its runtime has no place for."""
    places = {place for argument in runtime.command for place in places_of(argument)}
    for name, of_it in _PLACES_OF.items():
        said = getattr(asked, name)
        usual = type(asked).model_fields[name].default
        if said != usual and not places & {*of_it}:
            yield (
                f"{name}: is {said}, and the command of the runtime {runtime.name} has no "
                f"{{{of_it[0]}}}: its engine is not told; the model's `args` may tell it"
            )


def _proposal(memory: ModelMemory | None) -> str:
    if memory is None:
        return (
            "Its files say nothing of it here: `longshore models estimate` reads GGUF files, and "
            "folders of safetensors files"
        )
    requests, context = memory.serving.concurrency, memory.serving.context
    figure = (
        f"By its files {format_gb(round(memory.total / 1e9 + 0.05, 1))} for {requests:,} x "
        f"{context:,} tokens"
    )
    # A file for llama.cpp may have none.
    return ": ".join(filter(None, [figure, " ".join(memory.notes)]))
