"""How values travel through Temporal: as JSON, read into the models of Longshore."""

import contextlib
from collections.abc import Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import from_json
from temporalio.api.common.v1 import Payload
from temporalio.contrib.pydantic import PydanticPayloadConverter
from temporalio.converter import DataConverter

from longshore.models.base import Answer, Input, as_reason
from longshore.models.errors import SpecError
from longshore.models.problems import describe_all, shortened


class PayloadConverter(PydanticPayloadConverter):
    """Pydantic's, but an input of a workflow or an update that cannot be read is a SpecError: it
    ends the workflow, or refuses the update. What an agent answers is something in any case.

    Of any other error Temporal asks the workflow's task again and again, in vain here: the input
    of a workflow never changes.
    """

    def from_payloads(
        self, payloads: Sequence[Payload], type_hints: list[type] | None = None
    ) -> list[Any]:
        if type_hints == []:
            # As the SDK, which passes on no argument without a type. But it reads them first: an
            # encoding that it does not know would keep a workflow without input from its start.
            return []
        if (answer := _one_type(type_hints, Answer)) is not None:
            return [self._answer(answer, payloads)]
        wanted = _one_type(type_hints, Input)
        if wanted is not None:
            _refuse_too_long(wanted, payloads[0])
        try:
            values = super().from_payloads(payloads, type_hints)
        except ValidationError as error:
            if wanted is None:
                raise shortened(error) from None
            problems = describe_all(error, _as_json(payloads[0]), "input")
            raise SpecError("input", (*problems, wanted.instead)) from None
        except (KeyError, RuntimeError, UnicodeDecodeError):
            encodings = [one.metadata.get("encoding", b"") for one in payloads]
            several = type_hints is None and len(payloads) > 1  # which no workflow takes
            if not (wanted or several) or encodings == [b"json/plain"]:
                raise
            raise SpecError("input", (_not_json("the input", encodings),)) from None
        # Whatever is wanted, the encoding of nothing is read as None, and that of bytes as bytes.
        if wanted is not None and not isinstance(values[0], wanted):
            nothing = values[0] is None
            raise SpecError("input", (wanted.instead if nothing else "the input must be JSON",))
        return values

    def _answer(self, wanted: type[Answer], payloads: Sequence[Payload]) -> Answer:
        try:
            found = super().from_payloads(payloads, [wanted])[0]
        except ValidationError as error:
            why = "; ".join(describe_all(error, _as_json(payloads[0]), "all of it"))
        except (KeyError, RuntimeError, UnicodeDecodeError):
            why = _not_json("it", [one.metadata.get("encoding", b"") for one in payloads])
        else:
            if isinstance(found, wanted):
                return found
            why = "it must be JSON"
        return wanted.unreadable(as_reason(why))


_T = TypeVar("_T", bound=BaseModel)


def _one_type(type_hints: list[type] | None, kind: type[_T]) -> type[_T] | None:
    """Return what is read, where that is one value of this kind: the input of a workflow or an
    update, or the answer of an agent."""
    match type_hints:
        case [type() as wanted] if issubclass(wanted, kind):
            return wanted
        case _:
            return None


def _refuse_too_long(wanted: type[Input], payload: Payload) -> None:
    """Raise SpecError for an input with more bytes than it may have. To read it may take longer
    than a workflow may take for a step."""
    size = len(payload.data)
    if wanted.most_bytes is not None and size > wanted.most_bytes:
        too_long = f"has {size:,} bytes as JSON; {wanted.most_bytes:,} is the most"
        raise SpecError("input", (f"input: {too_long}", wanted.instead))


def _as_json(payload: Payload) -> object:
    """Return what a payload holds, read by no model; None where it is not JSON."""
    with contextlib.suppress(ValueError):
        return from_json(payload.data)
    return None


def _not_json(what: str, encodings: Sequence[bytes]) -> str:
    found = ", ".join(one.decode(errors="replace") or "none" for one in encodings)
    return f"{what} must be JSON, with the encoding json/plain; its encoding is {found}"


data_converter = DataConverter(payload_converter_class=PayloadConverter)
