"""Why asks do not count, in words."""

from collections.abc import Mapping

from longshore.models.price import LeftOut

_WHY = {
    LeftOut.INSTANCE_TYPE: ("is of another instance type", "are of another instance type"),
    LeftOut.WINDOW: ("is not for the whole window", "are not for the whole window"),
    LeftOut.ENDED: ("has ended", "have ended"),
    LeftOut.LATER: ("begins later", "begin later"),
    LeftOut.PRICE: ("has no price", "have no price"),
    LeftOut.LOT: ("is smaller than a lot", "are smaller than a lot"),
    LeftOut.PLACE: ("is elsewhere", "are elsewhere"),
}


def left_out_words(left_out: Mapping[str, int]) -> str:
    """Return how many asks do not count and why: ``2 asks that have ended, 1 that begins later``;
    nothing where all count. Keys are `LeftOut`."""
    parts = [
        f"{number:,} that {_WHY[LeftOut(reason)][number != 1]}"
        for reason, number in left_out.items()
        if number
    ]
    if not parts:
        return ""
    first, _, rest = parts[0].partition(" that ")
    asks = "ask" if first == "1" else "asks"
    return ", ".join([f"{first} {asks} that {rest}", *parts[1:]])
