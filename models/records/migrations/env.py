"""Alembic's environment: runs inside `activities.database.upgrade`, which gives the connection."""

from alembic import context

import longshore.models.records.arrays
import longshore.models.records.buying
import longshore.models.records.checkpoints
import longshore.models.records.dags
import longshore.models.records.funding
import longshore.models.records.jobs
import longshore.models.records.market
import longshore.models.records.preemption
import longshore.models.records.prices
import longshore.models.records.services
import longshore.models.records.serving  # noqa: F401 (its tables)
from longshore.models.records.tables import SQLModel

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=SQLModel.metadata,
    transaction_per_migration=True,
)
with context.begin_transaction():
    context.run_migrations()
