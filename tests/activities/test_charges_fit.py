"""The database refuses a charge whose envelope is not near its tenant, or not for such GPUs."""

import random
from typing import Any

import pytest
from sqlalchemy.exc import IntegrityError

from longshore.scheduling.funding.facts import Branch
from longshore.scheduling.funding.ladder import OWN, RELATIVES, Tree
from tests.support.funding import charge, envelope, job_of, sums, tenant, write_charge
from tests.support.ledger import Ledger

TREE = {
    "top": None, "root": "top", "a": "root", "b": "root", "aa": "a", "ab": "a", "ba": "b",
    "aaa": "aa", "other": None,
}  # fmt: skip


@pytest.fixture
async def tree(ledger: Ledger) -> Ledger:
    """A tree of four steps, one tenant outside of it, and a node of eight H100 in the EU."""
    await ledger.register(gpus=8)
    await ledger.rows('UPDATE nodes SET labels = \'{"region": "eu"}\'')
    for name, parent in TREE.items():
        await tenant(ledger, name, parent)
    return ledger


@pytest.mark.parametrize(
    ("owner", "near"),
    [
        ("aa", True), ("a", True), ("ab", True), ("root", True), ("b", True), ("ba", True),
        ("top", False), ("aaa", False), ("other", False),
    ],
)  # fmt: skip
async def test_whose_envelope_may_be_shared(tree: Ledger, owner: str, near: bool):
    main = await envelope(tree, owner)
    await job_of(tree, "j", "aa")
    if near:
        await write_charge(tree, charge("j", main))
        assert await sums(tree) == {f"{owner}/main": 1000}
        return
    with pytest.raises(
        IntegrityError,
        match=f"envelope {owner}/main does not pay for tenant aa: {owner} is no parent, sibling",
    ):
        await write_charge(tree, charge("j", main))
    assert await sums(tree) == {f"{owner}/main": 0}


async def test_whoever_is_named_in_the_lending_pays_however_far(tree: Ledger):
    main = await envelope(tree, "other", lend_to=["aa"], lend_milli=1000)
    await job_of(tree, "j", "aa")
    with pytest.raises(IntegrityError, match="is no parent"):
        await write_charge(tree, charge("j", main))
    await write_charge(tree, charge("j", main, lent=True))
    below = await envelope(tree, "aaa", lend_to=["ab"], lend_milli=1000)
    await job_of(tree, "not", "aa", (1,))
    with pytest.raises(IntegrityError, match="envelope aaa/main is not lent to tenant aa"):
        await write_charge(tree, charge("not", below, (1,), lent=True))


async def test_the_database_knows_the_relatives_that_the_ladder_knows(ledger: Ledger):
    draw = random.Random(1)
    parents: dict[str, str | None] = {}
    for number in range(25):
        parents[f"t{number}"] = draw.choice([None, *parents, *parents, *parents])
    for name, parent in parents.items():
        await tenant(ledger, name, parent)
    known = Tree({name: Branch(parent) for name, parent in parents.items()})
    rows = await ledger.rows(
        "SELECT t.name, o.name AS owner, tenants_are_near(t.name, o.name) AS near"
        "  FROM tenants t CROSS JOIN tenants o"
    )
    found = {(row["name"], row["owner"]): row["near"] for row in rows}
    assert found == {
        (name, owner): known.steps(name, owner) not in (None, OWN)
        for name in parents
        for owner in parents
    }
    seen = {known.steps(name, owner) for name, owner in found}
    assert seen == {None, OWN, *RELATIVES}, "the tree has them all"


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"gpu_type": "A100"}, "envelope a/main is for A100, and node node-a is H100, pool "),
        ({"pool": "elsewhere"}, "envelope a/main is for pool elsewhere, and node node-a is "),
        ({"labels": '{"region": "us"}'}, 'for {"region": "us"}, and node node-a is '),
        ({"labels": '{"region": "eu", "rack": "1"}'}, "and node node-a is "),
        ({"gpu_type": "h100", "labels": '{"region": "eu"}'}, None),
    ],
)
async def test_for_which_gpus_an_envelope_is(
    tree: Ledger, fields: dict[str, Any], said: str | None
):
    main = await envelope(tree, "a", **{"labels": "{}", **fields})
    await job_of(tree, "j", "a")
    if said is None:
        await write_charge(tree, charge("j", main))
        return
    with pytest.raises(IntegrityError, match=said.replace("{", r"\{")):
        await write_charge(tree, charge("j", main))
