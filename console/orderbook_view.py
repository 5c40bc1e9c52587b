"""The parts of the page /orderbook as HTML. Everything that comes from a market is escaped."""

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

from longshore.console.escaping import escape
from longshore.console.formats import clock, percent, with_code
from longshore.models.market import Level, NoQuote, NoQuoteReason
from longshore.models.price import CountedLevel, PriceAnswer, Slippage
from longshore.models.text import count, dollars, places_of, price, span

ROWS = 14
"""Rows of a table; the recommended one is shown in any case."""


def answer_html(answer: PriceAnswer) -> str:
    """Return the recommended limit and the numbers that stand beside it."""
    unit = "<small>/GPU-hour</small>"
    facts = (
        ("Average, walking the book", price(answer.average)),
        ("Marginal, of the last GPU", price(answer.marginal)),
        ("Best ask", price(answer.asks[0].level.price)),
        ("Best bid", price(answer.bids[0].level.price) if answer.bids else "none"),
        ("Cost an hour", f"{dollars(answer.cost_per_hour)} <small>on average</small>"),
        ("At most an hour", f"{dollars(answer.worst_per_hour)} <small>at the limit</small>"),
        ("Spread", _spread(answer)),
        (
            "Liquidity",
            f"{count(answer.ask_liquidity)} <small>asked</small> "
            f"{count(answer.bid_liquidity)} <small>bid</small>",
        ),
    )
    rows = "".join(f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in facts)
    return (
        '<div class="pick"><div class="label">Recommended limit</div>'
        f'<div class="price" data-limit="{answer.limit}">{price(answer.limit)} {unit}</div>'
        f'<div class="label">{_bought(answer)}</div></div>'
        f'<dl class="facts">{rows}</dl>'
        f'<p class="reason">{escape(answer.reason)}.</p>'
    )


def no_quote_html(why: NoQuote, market: str, instance_type: str) -> str:
    """Return what to say, and what to do, when there is no price."""
    head, advice = _NO_QUOTE[why.reason]
    said = why.detail.removeprefix(f"{market}: ")
    detail = f"<p>{escape(_sentence(said))}</p>" if said else ""
    names = {"type": escape(instance_type), "market": escape(market)}
    return (
        f'<div class="empty" role="status"><h2>{head.format(**names)}</h2>{detail}'
        f"<p>{advice.format(**names)}</p></div>"
    )


def trouble_html(head: str, sentence: str, advice: str) -> str:
    """Return a card's content for when something does not answer."""
    return (
        f'<div class="empty" role="alert"><h2>{escape(head)}</h2><p>{escape(sentence)}</p>'
        f"<p>{with_code(advice)}</p></div>"
    )


def notes_html(answer: PriceAnswer) -> str:
    """Return the warnings as a list; nothing without any."""
    items = "".join(_note(warning) for warning in answer.warnings)
    return f'<ul class="notes" aria-label="Warnings">{items}</ul>' if items else ""


def levels_html(
    side: str, levels: Sequence[CountedLevel], observed_at: datetime, picked: int | None = None
) -> str:
    """Return the table of one side, `asks` or `bids`, with the row of index `picked` marked."""
    most = max(ROWS, 0 if picked is None else picked + 2)
    shown = levels[:most]
    places = places_of(each.level.price for each in shown)
    full = max((each.cumulative for each in shown), default=1) or 1
    rows = "".join(
        _row(each, observed_at, places, each.cumulative / full, index == picked)
        for index, each in enumerate(shown)
    )
    if not shown:
        rows = f'<tr><td class="none" colspan="4">{_NOBODY[side]}</td></tr>'
    elif more := levels[most:]:
        gpus = levels[-1].cumulative - shown[-1].cumulative
        rows += (
            f'<tr class="more"><td colspan="4">{len(more)} more, {count(gpus, "GPU")}</td></tr>'
        )
    heads = "".join(
        f'<th scope="col">{name}</th>' for name in ("$/GPU-hour", "GPUs", "Total", "Holds")
    )
    return (
        f'<table class="book {side}"><caption class="sr-only">{side.capitalize()} by price'
        f"</caption><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>"
    )


def slippage_html(slippage: Iterable[Slippage], bought: int) -> str:
    """Return what other sizes would cost, the one that is asked for marked."""
    entries = tuple(slippage)
    places = places_of(one.average for one in entries)
    last_places = places_of(one.marginal for one in entries)
    rows = "".join(
        f"<tr{_PICK if one.gpus == bought else ''}><td>{count(one.gpus)}</td>"
        f"<td>{dollars(one.average, places)}</td><td>{dollars(one.marginal, last_places)}</td>"
        f"<td>{percent(one.over_best)}</td></tr>"
        for one in entries
    )
    return (
        '<table class="book"><caption class="sr-only">What other sizes would cost</caption>'
        '<thead><tr><th scope="col">GPUs</th><th scope="col">Average</th>'
        '<th scope="col">Last GPU</th><th scope="col">Over best ask</th></tr></thead>'
        f"<tbody>{rows}</tbody></table>"
    )


def live_html(read_at: datetime | None, now: datetime, observed_at: datetime | None = None) -> str:
    """Return when the book was read, and the market's own time where it is another."""
    if read_at is None:
        return '<span class="live old"><span class="dot"></span>no book</span>'
    old = now - read_at > timedelta(seconds=15)
    words = f"updated {clock(read_at)}"
    if observed_at is not None and abs(read_at - observed_at) > _MINUTE:
        words += f"; at the market it was {observed_at:%d %B} {clock(observed_at)}"
    return (
        f'<span class="live{" old" if old else ""}"><span class="dot"></span>'
        f'<time datetime="{read_at.isoformat()}">{words}</time></span>'
    )


_MINUTE = timedelta(minutes=1)
_PICK = ' class="pick" aria-current="true"'
_NO_QUOTE = {
    NoQuoteReason.EMPTY: (
        "Nothing of {type} is for sale",
        "It is looked at again every two seconds. Meanwhile choose another instance type, window "
        "or market above.",
    ),
    NoQuoteReason.LEFT_OUT: (
        "No ask fits this need",
        "There are asks for {type}, and none holds for all of the window in whole lots. Choose a "
        "shorter window or fewer nodes above.",
    ),
    NoQuoteReason.UNREACHABLE: (
        "{market} does not answer",
        "It is asked again every two seconds. What stands below was stored before.",
    ),
    NoQuoteReason.NOTHING_NEEDED: (
        "Nothing is needed",
        "Ask for one node at least.",
    ),
    NoQuoteReason.UNKNOWN_TYPE: (
        "{type} is not traded here",
        "Choose one of the types in the list, or another market.",
    ),
}
_NOBODY = {"asks": "No ask that counts.", "bids": "Nobody bids."}
_NOTES = {
    "insufficient": "Too few GPUs for sale",
    "thin": "Thin book",
    "one seller": "One seller",
    "wide spread": "Wide spread",
    "crossed book": "Crossed book",
}


def _note(warning: str) -> str:
    word, colon, rest = warning.partition(": ")
    if colon and word in _NOTES:
        return f"<li><b>{_NOTES[word]}.</b> {escape(_sentence(rest))}</li>"
    return f"<li>{escape(_sentence(warning))}</li>"


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "!", "?")) else ".")


def _bought(answer: PriceAnswer) -> str:
    text = f"for {count(answer.bought, 'GPU')}"
    if answer.bought != answer.needed:
        text += f", as {count(answer.needed)} come in whole lots"
    return f"{text}, in {escape(answer.place_name)}" if answer.place_name else text


def _spread(answer: PriceAnswer) -> str:
    if answer.spread is None:
        return "none"
    share = answer.spread / answer.asks[0].level.price
    return f"{price(answer.spread)} <small>{share * 100:.1f} %</small>"


def _row(each: CountedLevel, observed_at: datetime, places: int, fill: float, picked: bool) -> str:
    chip = '<span class="chip">limit</span>' if picked else ""
    return (
        f'<tr{_PICK if picked else ""} style="--fill:{fill * 100:.1f}%">'
        f"<td>{dollars(each.level.price, places)}{chip}</td><td>{count(each.level.gpus)}</td>"
        f"<td>{count(each.cumulative)}</td><td>{_holds(each.level, observed_at)}</td></tr>"
    )


def _holds(level: Level, observed_at: datetime) -> str:
    if level.duration is not None:
        return span(level.duration)
    if level.ends_at is None:
        return "open"
    return span(max(level.ends_at - (level.start or observed_at), timedelta(0)))
