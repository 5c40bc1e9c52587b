"""Reads Prime Intellect's lists of offers: they change often, and may wrongly be empty."""

import logging

from pydantic import TypeAdapter, ValidationError

from longshore.activities.providers.http import Answer, MarketHTTP
from longshore.activities.providers.prime_reading import gpu_of
from longshore.activities.providers.prime_shapes import Row, Rows, Summary
from longshore.models.errors import AnswerError, MarketAwayError, MarketError
from longshore.models.market import InstanceType
from longshore.models.problems import describe

_PAGE = 100
_log = logging.getLogger(__name__)
_SUMMARY = TypeAdapter(Summary)


async def all_rows(http: MarketHTTP, api: str) -> tuple[list[Row], bool]:
    """Return every row, of one machine and of several, and whether a simulated market gave them.

    An empty list is read a second time and held against the summary: it has been seen while there
    were offers. Raises MarketAwayError when the two contradict each other.
    """
    singles, simulated = await _rows(http, f"{api}/availability/gpus")
    if not singles:
        singles, simulated = await _rows(http, f"{api}/availability/gpus")
    if not singles and (offered := await _summary(http, api)):
        raise MarketAwayError(
            http.provider,
            f"it lists no offers, though its summary has {len(offered)} types of GPU",
        )
    return [*singles, *await _rows_of_several(http, api)], simulated


async def known_types(http: MarketHTTP, api: str) -> list[InstanceType]:
    """Return what is traded, whether there is stock or not."""
    rows, _ = await _rows(http, f"{api}/availability/gpus")
    listed = [gpu_of(row.gpuType, row.gpuCount, row.gpuMemory) for row in rows]
    summed = [
        gpu_of(gpu_type, int(count))
        for gpu_type, counts in (await _summary(http, api)).items()
        for count in counts
        if count.isdigit()
    ]
    known = [kind for kind in listed if kind is not None]
    # The summary names no memory, so a type of a row is not listed once more without it.
    more = [kind for kind in summed if kind and not any(kind.takes(each) for each in known)]
    return [*known, *more]


async def _rows(http: MarketHTTP, path: str) -> tuple[list[Row], bool]:
    """Return the rows of all pages. The list ends with its count or an empty page.

    Rows that are not as documented are left out, and logged. Raises AnswerError where all are so.
    """
    rows: list[Row] = []
    odd: AnswerError | None = None
    page, seen = 1, 0
    while True:
        answer = await http.get(path, {"page": page, "page_size": _PAGE})
        shape = answer.read(Rows)
        for number, item in enumerate(shape.items):
            try:
                rows.append(Row.model_validate(item))
            except ValidationError as error:
                odd = _left_out(answer, number, error)
        seen += len(shape.items)
        if not shape.items or seen >= shape.totalCount:
            if odd and not rows:
                raise odd
            return rows, answer.simulated
        page += 1


def _left_out(answer: Answer, number: int, error: ValidationError) -> AnswerError:
    """Log what is wrong with a row, and return it as an error of its list."""
    mistake = error.errors(include_url=False)[0]
    where = ".".join(str(part) for part in mistake["loc"]) or "it"
    said = answer.hide(f"{where} {describe(mistake)}")
    _log.info("%s: left out a row that is not as documented: %s", answer.provider, said)
    text = f"its answer to {answer.asked} is not as documented: items.{number}.{said}"
    return AnswerError(answer.provider, text)


async def _rows_of_several(http: MarketHTTP, api: str) -> list[Row]:
    """Return the rows with several machines; not every key may see them."""
    try:
        rows, _ = await _rows(http, f"{api}/availability/multi-node")
    except MarketError as error:
        _log.info("offers of several machines are left out: %s", error)
        return []
    return [row.model_copy(update={"several": True}) for row in rows]


async def _summary(http: MarketHTTP, api: str) -> Summary:
    """Return the GPU types that have offers, with their counts; empty where it does not say."""
    try:
        answer = await http.get(f"{api}/availability/gpu-summary")
        found = _SUMMARY.validate_python(answer.value)
    except (MarketError, ValidationError):
        return {}
    return {gpu_type: counts for gpu_type, counts in found.items() if counts}
