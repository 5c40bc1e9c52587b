"""How values travel through Temporal: as JSON, read into the models of Longshore."""

from collections.abc import Sequence
from typing import Any

from pydantic import ValidationError
from temporalio.api.common.v1 import Payload
from temporalio.contrib.pydantic import PydanticPayloadConverter
from temporalio.converter import DataConverter

from models.errors import SpecError
from models.messages import JobInput
from models.problems import describe_all


class PayloadConverter(PydanticPayloadConverter):
    """Pydantic's, but a job's input that cannot be read is a SpecError, which ends its workflow.

    Of any other error Temporal asks the workflow's task again and again, in vain here: the input
    of a workflow never changes.
    """

    def from_payloads(
        self, payloads: Sequence[Payload], type_hints: list[type] | None = None
    ) -> list[Any]:
        try:
            return super().from_payloads(payloads, type_hints)
        except ValidationError as error:
            if not _is_of_a_job(type_hints):
                raise
            raise SpecError("input", describe_all(error, "input")) from None
        except (KeyError, RuntimeError, UnicodeDecodeError):
            encodings = [one.metadata.get("encoding", b"") for one in payloads]
            several = type_hints is None and len(payloads) > 1  # which no workflow takes
            if not (_is_of_a_job(type_hints) or several) or encodings == [b"json/plain"]:
                raise
            raise SpecError("input", (_not_json(encodings),)) from None


def _is_of_a_job(type_hints: list[type] | None) -> bool:
    return type_hints == [JobInput | None]


def _not_json(encodings: Sequence[bytes]) -> str:
    found = ", ".join(one.decode(errors="replace") or "none" for one in encodings)
    return f"the input must be JSON, with the encoding json/plain; its encoding is {found}"


data_converter = DataConverter(payload_converter_class=PayloadConverter)
