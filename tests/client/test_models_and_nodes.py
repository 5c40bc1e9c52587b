"""`longshore models add` says what no node that there is has room for."""

from pathlib import Path

from temporalio.client import Client

from longshore.activities.database import Database
from tests.client.conftest import Command
from tests.support.ledger import Ledger
from tests.support.safetensors_models import write


async def test_a_model_that_no_node_has_room_for_is_warned_of(
    longshore: Command, control: Database, temporal: Client, tmp_path: Path
):
    await Ledger(control, temporal, "warned").register("small", gpus=2)
    asked = ("models", "add", "large", "--source", str(write(tmp_path)), "--runtime", "vllm")
    asked = (*asked, "--overhead", "0")
    made = await longshore(*asked, "--memory", "200GB")
    assert made.code == 0, made.err
    assert (
        "warning: model large: needs 200.0GB on 1 to 12 GPUs (100GB of each of 2), and no node "
        "that there is has room: the largest GPU has 80GB (H100 of small), the node with the most "
        "160GB (2 GPUs of small)"
    ) in " ".join(made.err.split())
    assert (await longshore(*asked, "--memory", "160GB")).err == ""
