"""The money of budgets: what purchases have taken of it, and what is left."""

from collections.abc import Sequence

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from longshore.models.caps_left import BudgetLeft


async def money_left(
    connection: AsyncConnection, tenants: Sequence[str]
) -> tuple[dict[str, BudgetLeft], dict[str, tuple[str, ...]]]:
    """Return what is left of each budget with money that pays for purchases of these tenants, and
    by tenant which do: its own, and those above it."""
    rows = (await connection.execute(text(_LEFT), {"tenants": list(tenants)})).mappings().all()
    budgets: dict[str, BudgetLeft] = {}
    above: dict[str, tuple[str, ...]] = {}
    for row in rows:
        day, month = row["money_per_day"], row["money_per_month"]
        budgets[row["name"]] = BudgetLeft(
            day=None if day is None else day - row["today"],
            month=None if month is None else month - row["this_month"],
            per_day=day, per_month=month,
            day_ends=row["day_ends"], month_ends=row["month_ends"],
        )  # fmt: skip
        above[row["tenant"]] = (*above.get(row["tenant"], ()), row["name"])
    return budgets, above


_LEFT = """
    SELECT asked.tenant, t.name, t.money_per_day, t.money_per_month,
           budget_spent(t.name, today.day, today.day) AS today,
           budget_spent(t.name, month_of(today.day), today.day) AS this_month,
           (today.day + 1)::timestamp AT TIME ZONE 'UTC' AS day_ends,
           (month_of(today.day) + interval '1 month')::timestamp AT TIME ZONE 'UTC' AS month_ends
      FROM unnest(CAST(:tenants AS text[])) AS asked (tenant)
     CROSS JOIN (SELECT (clock_timestamp() AT TIME ZONE 'UTC')::date AS day) AS today
     CROSS JOIN LATERAL tenants_above(asked.tenant) AS up (name)
      JOIN tenants t ON t.name = up.name
       AND (t.money_per_day IS NOT NULL OR t.money_per_month IS NOT NULL)
     ORDER BY asked.tenant, t.name
"""
"""As the trigger `purchase_commits` looks at them."""
