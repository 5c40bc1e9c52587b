"""The edges of a DAG: what a job waits for of another, as it is written."""

from collections import Counter
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Self, cast

from pydantic import AfterValidator, BeforeValidator, Field, model_validator
from pydantic.json_schema import SkipJsonSchema

from longshore.models.base import Frozen, Name
from longshore.models.bounds import Most
from longshore.models.text import listed
from longshore.models.visible import brief, said, shown


class Condition(StrEnum):
    """How an upstream job has to end for a job that comes after it."""

    SUCCESS = "success"
    """It succeeded."""
    FAILURE = "failure"
    """It failed, or was cancelled after it had started."""
    ANY = "any"
    """It has ended, however: it may have been skipped too."""
    CORRESPONDING = "corresponding"
    """Between two arrays: the element with the same index succeeded."""


_SLURMS = {
    "afterok": Condition.SUCCESS, "afternotok": Condition.FAILURE, "afterany": Condition.ANY,
    "aftercorr": Condition.CORRESPONDING,
}  # fmt: skip
"""Slurm's words. Who writes one is shown it."""
_OTHER_WORDS = _SLURMS | {
    "ok": Condition.SUCCESS, "notok": Condition.FAILURE, "corr": Condition.CORRESPONDING,
}  # fmt: skip


def _condition(value: object) -> object:
    if value in ("mutex", "singleton"):
        raise ValueError(
            "no condition of one job: give the job `singleton: true` instead, or `mutex: NAME`"
        )
    return _OTHER_WORDS.get(value, value) if isinstance(value, str) else value


AnyCondition = Annotated[Condition, BeforeValidator(_condition)]


class Extra(StrEnum):
    """What an index does that has no partner in the array that it comes after."""

    START = "start"
    """It does not wait for that array."""
    WAIT = "wait"
    """It waits for the success of the whole array, as in Slurm."""


class Edge(Frozen):
    """What a job waits for of one upstream job. A word alone is its condition."""

    condition: AnyCondition = Condition.SUCCESS
    catch: bool = True
    """Of `failure`: the job that runs for it deals with the failure, which does not fail the DAG
    then. false for a job that only tells somebody of it."""
    extra: Extra = Field(default=Extra.START, exclude_if=lambda extra: extra is Extra.START)
    """Of `corresponding`: whether indices that the other array has not `start` without it, or
    `wait` for the success of all of it."""
    word: SkipJsonSchema[str] = Field(default="", max_length=20, exclude_if=lambda word: not word)
    """Slurm's word for the condition, where that was written: it is what people are shown. Filled
    in by itself."""

    @model_validator(mode="before")
    @classmethod
    def _from_a_word(cls, value: object) -> object:
        if isinstance(value, str):
            value = {"condition": value}
        if isinstance(value, Edge):
            return value
        if not isinstance(value, Mapping):
            words = "success, failure, any or corresponding"
            raise ValueError(f"must be {words}, or a mapping with a condition, got {said(value)}")
        given = cast("Mapping[object, object]", value)
        word = given.get("condition")
        return {"word": word, **given} if isinstance(word, str) and word in _SLURMS else given

    @model_validator(mode="after")
    def _word_is_of_the_condition(self) -> Self:
        if self.word and _SLURMS.get(self.word) is not self.condition:
            raise ValueError(
                f"word: {brief(self.word)!r} is not Slurm's word for {self.condition.value}: "
                "leave it out, it is filled in where `condition` is a word of Slurm's"
            )
        return self

    @property
    def shown(self) -> str:
        """The condition as it was written, with what is not the default beside it."""
        condition = self.word or self.condition.value
        if self.condition is Condition.FAILURE and not self.catch:
            return f"{condition}, catch false"
        return f"{condition}, extra {self.extra}" if self.extra is Extra.WAIT else condition

    @model_validator(mode="after")
    def _extra_is_of_arrays(self) -> Self:
        if self.extra is Extra.WAIT and self.condition is not Condition.CORRESPONDING:
            raise ValueError(
                f"extra is for the condition corresponding, and not for {self.condition.value}: "
                "leave it out"
            )
        return self


def _after(value: object) -> object:
    """Return names as edges of the condition `success`; a mapping as it is."""
    if isinstance(value, str):
        return {_name_alone(value): Condition.SUCCESS.value}
    if isinstance(value, list | tuple):
        names = cast("list[object]", value)
        if not all(isinstance(name, str) for name in names):
            raise ValueError("a list holds names alone; a condition goes as in {train: failure}")
        _refuse_doubles(names)
        return dict.fromkeys(map(_name_alone, cast("list[str]", names)), Condition.SUCCESS.value)
    if not isinstance(value, Mapping):
        raise ValueError(
            "must be a job's name, a list of names, or a mapping of names to conditions, "
            f"got {said(value)}"
        )
    return cast("object", value)


def _name_alone(text: str) -> str:
    """Return the name; one that has a condition as Slurm writes it is refused."""
    word, _, names = text.partition(":")
    if word in _OTHER_WORDS and names:
        instead = ", ".join(f"{brief(name)}: {word}" for name in names.split(":"))
        raise ValueError(f"{shown(text)} is how Slurm writes it: write {{{instead}}}")
    return text


def _refuse_doubles(names: Sequence[object]) -> None:
    """Raise ValueError where a list has a name twice."""
    twice = [name for name, number in Counter(map(str, names)).items() if number > 1]
    if twice:
        raise ValueError(f"has {listed(list(map(shown, twice)), 3)} twice: once is enough")


_MOST_UPSTREAM = Most(10_000)
After = Annotated[
    dict[Name, Edge],
    BeforeValidator(
        _after,
        json_schema_input_type=Annotated[dict[Name, Edge | Condition], _MOST_UPSTREAM]
        | Annotated[list[Name], _MOST_UPSTREAM]
        | Name,
    ),
    _MOST_UPSTREAM,
]


def _one_or_several(value: object) -> object:
    if isinstance(value, list):  # of a document, which is read strictly
        value = tuple(cast("list[object]", value))
    if isinstance(value, tuple):
        _refuse_doubles(cast("tuple[object, ...]", value))
    if not isinstance(value, str | tuple | set | frozenset):
        raise ValueError(f"must be a name or a list of names, got {said(value)}")
    return (value,) if isinstance(value, str) else cast("object", value)


def _sorted(names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(sorted(set(names)))


Names = Annotated[
    tuple[Name, ...],
    Field(max_length=16),
    BeforeValidator(
        _one_or_several,
        json_schema_input_type=Annotated[list[Name], Field(max_length=16)] | Name,
    ),
    AfterValidator(_sorted),
]
"""Names, sorted, each once."""
