"""What whoever cordons or drains a node is told of its machine, and that it is closed also where
nothing can be told."""

from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy.exc import OperationalError

from longshore.activities.database import Database
from longshore.client.node_control import NodeControl
from longshore.models.errors import NewerTablesError, StoredError
from longshore.models.node_messages import NodeStatus


class Away(NodeControl):
    """Steers nodes whose machines the database says nothing of."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def _db(self) -> Database:
        raise self._error

    async def _update_node(self, node_id: str, update: Any, command: Any) -> NodeStatus:
        return NodeStatus(node_id=node_id, state="DRAINING", epoch=1)


@pytest.mark.parametrize(
    "error",
    [
        StoredError("pool", ("it cannot be read",)),
        NewerTablesError("a newer version has upgraded the database"),
        OperationalError("SELECT", None, Exception("away")),
        TimeoutError(),
    ],
)
async def test_a_node_is_closed_whatever_can_be_said_of_its_machine(error: Exception):
    assert (await Away(error).cordon("m")).state == "DRAINING"
    assert (await Away(error).drain("m", deadline=timedelta(hours=1))).state == "DRAINING"
