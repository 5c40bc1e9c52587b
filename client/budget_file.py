"""Reading a budget file: one budget, or several: below `budgets`, or each a YAML document."""

from longshore.client.several_documents import Several
from longshore.models.budget_document import BudgetDocument, BudgetsDocument
from longshore.models.funding import Budget

_BUDGETS = Several(
    BudgetDocument, BudgetsDocument, list="budgets", key="tenant",
    each_of=lambda file: file.budgets, already="has a budget in this file already",
)  # fmt: skip


def read_budgets(file: str) -> tuple[Budget, ...]:
    """Return the budgets in a file, or on stdin for ``-``.

    Raises SpecError with every mistake at once.
    """
    return tuple(each.budget() for each in _BUDGETS.read(file))
