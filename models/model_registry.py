"""Models and runtimes as they are stored: what was said of them, what their files say, and who
changed them when."""

from collections.abc import Iterator, Sequence
from typing import Any, Self

from pydantic import Field, model_validator

from longshore.models.base import Frozen, Instant, Name
from longshore.models.funding_views import Edit
from longshore.models.mistakes import Mistake, refuse
from longshore.models.model_memory import ModelMemory, Serving
from longshore.models.serving import ModelSpec, Runtime

MOST_IN_A_FILE = 1_000
"""Models, runtimes or services."""


class ModelFacts(Frozen):
    """What the files of a model say, as they were when it was added."""

    memory: ModelMemory
    """On one GPU, served as it is to be."""
    layers: int = 0
    heads: int = 0
    """Attention heads; 0 where they are not known."""
    key_heads: int = 0
    """KV heads; as many as heads where the files do not say."""
    context: int | None = None
    """Tokens of the longest text that it was trained on; None where the files do not say."""
    # A version before these three refuses them.
    files: str = Field(default="", exclude_if=lambda digest: not digest)
    """A digest of pieces of the files: others of the same shape have another. Empty of a model
    that a version before this stored, and that has not changed since, and of one whose files could
    never be read so."""
    files_since: int = Field(default=0, exclude_if=lambda revision: not revision)
    """The revision of the model with which its files, or those of an adapter, became others; 0
    where they never did."""
    adapter_files: dict[Name, str] = Field(
        default_factory=dict[str, str], exclude_if=lambda digests: not any(digests.values())
    )
    """A digest like `files` of each LoRA adapter; empty of one that was not read."""
    adapter_sizes: dict[Name, int] = Field(
        default_factory=dict[str, int], exclude_if=lambda sizes: not any(sizes.values())
    )
    """Bytes of the weights of each, which `memory` has in all; 0 of one of which they are not
    known. Empty of a model that a version before this stored."""

    @classmethod
    def as_known(cls, stored: object) -> Self:
        """Return them without what only a newer version knows. Raises ValidationError."""
        return cls.model_validate(stored, extra="ignore")

    def after(self, before: "ModelFacts", revision: int) -> Self:
        """Return them as they are stored in the place of those `before`, as that revision.

        Where the files were not read now, what was known of them stays: others would not be seen
        later, when they are read again.
        """
        of_adapters = {
            name: digest or before.adapter_files.get(name, "")
            for name, digest in self.adapter_files.items()
        }
        since = revision if self.others_than(before) else before.files_since
        files = self.files or before.files
        more = {"files": files, "files_since": since, "adapter_files": of_adapters}
        return self.model_copy(update=more)

    def others_than(self, before: "ModelFacts") -> tuple[str, ...]:
        """Return, in words, which files are others than before, as far as both know them."""
        return tuple(self._others_than(before))

    def _others_than(self, before: "ModelFacts") -> Iterator[str]:
        if self.files and before.files not in ("", self.files):
            yield "its files"
        for name, digest in self.adapter_files.items():
            if digest and before.adapter_files.get(name, "") not in ("", digest):
                yield f"those of the adapter {name}"

    def adapters_known_since(self, before: "ModelFacts") -> tuple[str, ...]:
        """Return the adapters of which the size is known now, and was not before."""
        if before.memory.adapters and not before.adapter_sizes:
            return ()  # an earlier version kept their sum alone
        known = before.adapter_sizes
        return tuple(
            name for name, size in self.adapter_sizes.items() if size and not known.get(name)
        )

    def is_shaped_as(self, other: "ModelFacts", *, but_adapters: bool = False) -> bool:
        """Whether the headers of files with these facts say what those with the others do; with
        `but_adapters` those of the model alone."""
        return self._shape(but_adapters) == other._shape(but_adapters)

    def _shape(self, but_adapters: bool) -> Self:
        unsaid: dict[str, Any] = {"files": "", "files_since": 0, "adapter_files": {}}
        unsaid["adapter_sizes"] = {}  # their sum is in `memory`
        if but_adapters:
            rest = {"adapters": 0, "total": self.memory.total - self.memory.adapters}
            unsaid["memory"] = self.memory.model_copy(update=rest)
        return self.model_copy(update=unsaid)


class SizeView(Frozen):
    """On how many GPUs of a node an engine of a model may run, and where there is room for it."""

    gpus: int
    memory: int
    """MB on each of them."""
    nodes: tuple[str, ...] = ()
    """Where one would start now."""
    when_empty: tuple[str, ...] = ()
    """Further nodes that take work, last long enough, and would hold it if nothing else ran
    there."""


class ModelView(Frozen):
    """A model that is stored."""

    spec: ModelSpec
    """With context and concurrency."""
    facts: ModelFacts | None = None
    """None where its files were not read: they are on nodes, or of a kind that is not known."""
    memory: int
    """Bytes of GPU memory in all: as stated, else by its header."""
    revision: int
    """Rises by 1 with each change."""
    changed_by: str
    changed_at: Instant
    created_at: Instant
    seen: int = 0
    """The most bytes of GPU memory that an engine of it took, as it is now; 0 where none ran. Only
    of one model that is asked for by its name, as the sizes."""
    sizes: tuple[SizeView, ...] = ()
    """The fewest GPUs first. A service chooses one for each replica."""
    trouble: str = ""
    """Why what is stored cannot be read; only name and runtime are true then."""


class RuntimeView(Frozen):
    """A runtime that is built in or stored."""

    runtime: Runtime
    built_in: bool
    models: int
    """How many are served by it."""
    revision: int = 1
    changed_by: str = ""
    changed_at: Instant | None = None
    """None of one that is built in."""
    trouble: str = ""
    """Why what is stored cannot be read; only the name is true then."""


class RegistryChange(Frozen):
    """A model or runtime that somebody stores, changes or removes."""

    name: Name
    edit: Edit
    fields: tuple[str, ...] = ()
    """Of what is changed: ``context 2048 to 4096``."""
    revision: int = 1
    """That it has then."""


class ModelsEdit(Frozen):
    """What `models add` changes, or would change."""

    changes: tuple[RegistryChange, ...] = ()
    """Without models that are stored so already."""
    warnings: tuple[str, ...] = ()
    models: tuple[ModelView, ...] = ()
    """All that were given, as they are stored then."""


class RuntimesEdit(Frozen):
    """What `runtimes add` changes, or would change."""

    changes: tuple[RegistryChange, ...] = ()
    """Without runtimes that are stored so already."""


class ModelsDocument(Frozen):
    """Several models in a file."""

    models: tuple[ModelSpec, ...] = Field(min_length=1, max_length=MOST_IN_A_FILE)

    @model_validator(mode="after")
    def _once(self) -> Self:
        refuse_twice("models", [each.name for each in self.models])
        return self


class RuntimesDocument(Frozen):
    """Several runtimes in a file."""

    runtimes: tuple[Runtime, ...] = Field(min_length=1, max_length=MOST_IN_A_FILE)

    @model_validator(mode="after")
    def _once(self) -> Self:
        refuse_twice("runtimes", [each.name for each in self.runtimes])
        return self


def serving_of(spec: ModelSpec) -> Serving:
    """Return how an engine will run a model; what is not said as `Serving` has it."""
    fields = {"cache_type": spec.cache_type, "batch": spec.batch, "overhead": spec.overhead}
    said = {"context": spec.context, "concurrency": spec.concurrency}
    return Serving.model_validate(
        fields | {name: value for name, value in said.items() if value is not None}
    )


def refuse_twice(what: str, names: Sequence[str]) -> None:
    """Raise Mistakes where a file has a name twice; `what` is its list."""
    refuse([
        Mistake((what, number, "name"), f"{name} is in this file already")
        for number, name in enumerate(names)
        if name in names[:number]
    ])  # fmt: skip
