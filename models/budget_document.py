"""Budgets in a file, for `longshore budget apply`: one, or a list of them below `budgets`."""

import difflib
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from longshore.models.base import Frozen, Name, ShortText
from longshore.models.bounds import Most
from longshore.models.funding import (
    MOST_ENVELOPES,
    NEVER,
    Budget,
    BudgetMoney,
    Cap,
    CapTerms,
    Envelope,
    GPUs,
    Lending,
    Sharing,
    SomeGPUs,
    TenantName,
)
from longshore.models.mistakes import Mistake, refuse
from longshore.models.moment import Dated
from longshore.models.money import MicroDollars, micro_of
from longshore.models.text import count, dollars, listed
from longshore.models.visible import shown

_MOST_BUDGETS = 1000
_MOST_CAPS = 50
_LONGEST_AMOUNT = 100


def _micro_of_dollars(value: object) -> object:
    # A bare number would be taken for micro-dollars, of which nobody thinks who writes one.
    if not isinstance(value, str) or not value.startswith("$") or len(value) > _LONGEST_AMOUNT:
        raise ValueError(f"must be dollars, such as $500, got {shown(value)}")
    micro = micro_of(value[1:].replace(",", ""))
    if micro < 0:
        raise ValueError(f"must be at least $0, got {shown(value)}")
    return micro


_Written = Annotated[str, Field(max_length=_LONGEST_AMOUNT)]
Dollars = Annotated[
    MicroDollars, BeforeValidator(_micro_of_dollars, json_schema_input_type=_Written)
]
"""Dollars as text in the file; micro-dollars in the model."""


_Label = Annotated[str, Most(200, one_line=True)]
"""Name or value of a label, as agents may give them."""


class LendingDocument(Frozen):
    """To whom an envelope is lent, and how much of it."""

    to: tuple[Name, ...] = Field(default=(), max_length=1000)
    """Tenants. Nobody else."""
    max: SomeGPUs | None = None
    """The most GPUs that are lent at one time, in all."""

    @model_validator(mode="after")
    def _said(self) -> Self:
        found: list[Mistake] = []
        if not self.to:
            why = "is required: the tenants that it is lent to. Lent to nobody, leave lending out"
            found.append(Mistake(("to",), why))
        if self.max is None:
            found.append(
                Mistake(
                    ("max",), "is required: the most GPUs that are lent at one time, such as 8"
                )
            )
        found += (
            Mistake(("to", number), f"names {name} twice")
            for number, name in enumerate(self.to)
            if name in self.to[:number]
        )
        refuse(found)
        return self


class EnvelopeDocument(Frozen):
    """A claim to so many GPUs at one time, of a type, somewhere, for a time."""

    gpus: GPUs
    """At one time. A part of a GPU counts as that part."""
    gpu_type: ShortText | None = Field(default=None, min_length=1, max_length=100)
    """Any, when left out."""
    pool: Name | None = None
    """Any, when left out."""
    labels: dict[_Label, _Label] = Field(default_factory=dict[str, str], max_length=20)
    """Of the nodes that it is for."""
    start: Dated | None = None
    """From when on; from the time that it is applied, when left out."""
    end: Literal["never"] | Dated | None = None
    """Until when: a time, or `never`. It has to be said."""
    sharing: Sharing = Sharing.FAMILY
    """`family`: relatives may use it while its tenant does not; or `none`."""
    lending: LendingDocument | None = None
    """By contract, to tenants that name this one as a sponsor."""

    @model_validator(mode="after")
    def _right(self) -> Self:
        found: list[Mistake] = []
        if self.end is None:
            found.append(
                Mistake(("end",), "is required: a time, such as 2027-04-01T00:00:00Z, or never")
            )
        elif self.end != NEVER and self.start is not None and self.end <= self.start:
            why = f"must be after start, {self.start:%Y-%m-%dT%H:%M:%SZ}, got "
            found.append(Mistake(("end",), f"{why}{self.end:%Y-%m-%dT%H:%M:%SZ}", (("start",),)))
        most = self.lending and self.lending.max
        if most and most > self.gpus:
            why = f"must be at most the {count(self.gpus, 'GPU')} of the envelope, got {most:g}"
            found.append(Mistake(("lending", "max"), why, (("gpus",),)))
        refuse(found)
        return self

    def envelope(self, name: str) -> Envelope:
        lending = None
        if self.lending is not None and self.lending.max is not None:
            lending = Lending(to=self.lending.to, max=self.lending.max)
        return Envelope(
            name=name, gpus=self.gpus, gpu_type=self.gpu_type, pool=self.pool, labels=self.labels,
            start=self.start, end=None if self.end == NEVER else self.end, sharing=self.sharing,
            lending=lending,
        )  # fmt: skip


class MoneyDocument(Frozen):
    """What purchases for a tenant and those below it may cost."""

    per_day: Dollars | None = None
    """Each day in UTC, such as `$500`."""
    per_month: Dollars | None = None
    """Each month in UTC."""

    @model_validator(mode="after")
    def _month_holds_a_day(self) -> Self:
        day, month = self.per_day, self.per_month
        if day is not None and month is not None and month < day:
            why = f"must be at least per_day, {dollars(day)}, got {dollars(month)}"
            refuse([Mistake(("per_month",), why, (("per_day",),))])
        return self


class BudgetDocument(Frozen):
    """The budget of one tenant."""

    tenant: TenantName
    envelopes: dict[Name, EnvelopeDocument] = Field(
        default_factory=dict[str, EnvelopeDocument], max_length=MOST_ENVELOPES
    )
    """By name. Without any the tenant has a budget all the same, and all that it runs is UNFUNDED,
    or paid for by others."""
    caps: dict[Name, CapTerms] = Field(default_factory=dict[str, CapTerms], max_length=_MOST_CAPS)
    """By name."""
    money: MoneyDocument | None = None
    """What purchases for it and those below it may cost."""

    @model_validator(mode="after")
    def _known(self) -> Self:
        found: list[Mistake] = []
        for name, cap in self.caps.items():
            for number, member in enumerate(cap.envelopes):
                if member not in self.envelopes:
                    why = f"there is no envelope {shown(member)} here"
                    close = difflib.get_close_matches(member, self.envelopes, n=1)
                    there = listed([*self.envelopes], 10) or "none"
                    known = f"; did you mean {close[0]}?" if close else f"; there is {there}"
                    place = ("caps", name, "envelopes", number)
                    found.append(Mistake(place, why + known, (("envelopes",),)))
                elif member in cap.envelopes[:number]:
                    place = ("caps", name, "envelopes", number)
                    found.append(Mistake(place, f"names {member} twice"))
            found += self._other_types(name, cap)
        for name, envelope in self.envelopes.items():
            to = envelope.lending.to if envelope.lending is not None else ()
            if self.tenant in to:
                place = ("envelopes", name, "lending", "to", to.index(self.tenant))
                why = f"{self.tenant} is its own tenant: name others, or leave lending out"
                found.append(Mistake(place, why, (("tenant",),)))
        refuse(found)
        return self

    def _other_types(self, name: str, cap: CapTerms) -> list[Mistake]:
        """Return the envelopes of a cap that are for another type of GPU than the first one that
        is for a type: so many GPUs are no limit over several types."""
        typed = [
            (number, member, of.gpu_type)
            for number, member in enumerate(cap.envelopes)
            if (of := self.envelopes.get(member)) is not None and of.gpu_type is not None
        ]
        return [
            Mistake(
                ("caps", name, "envelopes", number),
                f"{member} is for {other}, and {typed[0][1]} for {typed[0][2]}: a cap over "
                "envelopes is of one type, give each type its own",
                (("envelopes",),),
            )
            for number, member, other in typed[1:]
            if other.casefold() != typed[0][2].casefold()
        ]

    def budget(self) -> Budget:
        return Budget(
            tenant=self.tenant,
            envelopes=tuple(each.envelope(name) for name, each in self.envelopes.items()),
            caps=tuple(
                Cap(name=name, gpus=each.gpus, envelopes=each.envelopes, subtree=each.subtree)
                for name, each in self.caps.items()
            ),
            money=self.money
            and BudgetMoney(per_day=self.money.per_day, per_month=self.money.per_month),
        )


class BudgetsDocument(Frozen):
    """The budgets of several tenants."""

    budgets: tuple[BudgetDocument, ...] = Field(min_length=1, max_length=_MOST_BUDGETS)

    @model_validator(mode="after")
    def _once(self) -> Self:
        named = [each.tenant for each in self.budgets]
        refuse([
            Mistake(("budgets", number, "tenant"), f"{name} has a budget in this file already")
            for number, name in enumerate(named)
            if name in named[:number]
        ])  # fmt: skip
        return self
