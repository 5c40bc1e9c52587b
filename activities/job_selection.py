"""Which jobs are meant: by labels, by the form of their name, and by all else that a list is asked
for; as conditions of SQL."""

import json
from typing import Any

from longshore.models.constraints import Constraint
from longshore.models.labels import Selector


def label_conditions(selector: Selector) -> tuple[list[str], dict[str, Any]]:
    """Return conditions on the column `labels` of jobs, and their parameters.

    Each of `=`, `in` and the name alone is one that the index `jobs_by_label` answers. A job
    without labels has NULL there.
    """
    conditions, values = list[str](), dict[str, Any]()
    for number, each in enumerate(selector):
        name = f"label_{number}"
        has = _has(each, name)
        conditions.append(f"({has}) IS NOT TRUE" if each.negated else has)
        values[name] = _wanted(each)
    return conditions, values


def _has(each: Constraint, name: str) -> str:
    if not each.values:
        return f"labels ? CAST(:{name} AS text)"
    return f"labels @> ANY(CAST(CAST(:{name} AS text[]) AS jsonb[]))"


def _wanted(each: Constraint) -> str | list[str]:
    if not each.values:
        return each.key
    return [json.dumps({each.key: value}) for value in each.values]


def like(form: str) -> str:
    """Return a shell's pattern, such as ``a-*``, as one of SQL's LIKE."""
    return "".join(_LIKE.get(each, each) for each in form)


_LIKE = {"*": "%", "?": "_", "%": r"\%", "_": r"\_", "\\": r"\\"}
