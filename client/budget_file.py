"""Reading a budget file: one budget, or several: below `budgets`, or each a YAML document."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import yaml

from longshore.models.budget_document import BudgetDocument, BudgetsDocument
from longshore.models.document import load_document, read_document
from longshore.models.errors import SpecError
from longshore.models.funding import Budget
from longshore.models.plain_yaml import parse_yaml

_BEGINS = re.compile(r"---(\s.*)?", re.DOTALL)
"""A line that begins a document. A budget has no text of several lines in which it could be."""


def read_budgets(file: str) -> tuple[Budget, ...]:
    """Return the budgets in a file, or on stdin for ``-``.

    Raises SpecError with every mistake at once.
    """
    source = "stdin" if file == "-" else file
    text = sys.stdin.read() if file == "-" else _text_of(file)
    if text is None:  # whoever reads it says why it cannot be read
        return (read_document(file, BudgetDocument).budget(),)
    documents = list(_documents(text))
    if len(documents) < 2:
        return _budgets_in(text, source)
    found: list[tuple[int, Budget]] = []
    problems: list[str] = []
    for line, document in documents:
        try:
            found += [(line, budget) for budget in _budgets_in(document, source)]
        except SpecError as error:
            problems += error.problems
    named = [budget.tenant for _, budget in found]
    problems += [
        f"{source}:{line}: tenant: {budget.tenant} has a budget in this file already"
        for number, (line, budget) in enumerate(found)
        if budget.tenant in named[:number]
    ]
    if problems:
        raise SpecError(source, tuple(problems))
    return tuple(budget for _, budget in found)


def _budgets_in(text: str, source: str) -> tuple[Budget, ...]:
    if _has_several(text):
        several = load_document(text, source, BudgetsDocument)
        return tuple(each.budget() for each in several.budgets)
    return (load_document(text, source, BudgetDocument).budget(),)


def _documents(text: str) -> Iterator[tuple[int, str]]:
    """Return each document that holds anything with its first line, after as many empty lines as
    come before it: what is said of it names its line in the file."""
    first, lines = 0, text.splitlines(keepends=True)
    begins = [number for number, line in enumerate(lines) if _BEGINS.fullmatch(line)]
    for end in (*begins, len(lines)):
        part = lines[first:end]
        filled = (line.partition("#")[0].removeprefix("---").strip() for line in part)
        if any(filled):
            yield first + 1, "\n" * first + "".join(part)
        first = end


def _text_of(file: str) -> str | None:
    """Return the text of a file; None of one that cannot be read."""
    try:
        return Path(file).read_text("utf-8-sig")
    except (OSError, ValueError):
        return None


def _has_several(text: str) -> bool:
    try:
        root = parse_yaml(text.replace("\t", " "))
    except (yaml.YAMLError, RecursionError):
        return False
    return root is not None and isinstance(root.value, dict) and "budgets" in root.value
