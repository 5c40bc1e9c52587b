"""Reading a budget file: one budget, or several below `budgets`."""

import sys
from pathlib import Path

import yaml

from longshore.models.budget_document import BudgetDocument, BudgetsDocument
from longshore.models.document import load_document, read_document
from longshore.models.funding import Budget
from longshore.models.plain_yaml import parse_yaml


def read_budgets(file: str) -> tuple[Budget, ...]:
    """Return the budgets in a file, or on stdin for ``-``.

    Raises SpecError with every mistake at once.
    """
    text = sys.stdin.read() if file == "-" else None
    if _has_several(_text_of(file) if text is None else text):
        several = (
            read_document(file, BudgetsDocument)
            if text is None
            else load_document(text, "stdin", BudgetsDocument)
        )
        return tuple(each.budget() for each in several.budgets)
    one = (
        read_document(file, BudgetDocument)
        if text is None
        else load_document(text, "stdin", BudgetDocument)
    )
    return (one.budget(),)


def _text_of(file: str) -> str:
    """Return the text of a file; of one that cannot be read none: who reads it then says why."""
    try:
        return Path(file).read_text("utf-8-sig")
    except (OSError, ValueError):
        return ""


def _has_several(text: str) -> bool:
    try:
        root = parse_yaml(text.replace("\t", " "))
    except (yaml.YAMLError, RecursionError):
        return False
    return root is not None and isinstance(root.value, dict) and "budgets" in root.value
