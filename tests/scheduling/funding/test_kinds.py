"""On which nodes of a pool jobs are planned for which envelopes pay that are for some alone."""

from collections.abc import Iterable
from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st

from longshore.models.constraints import Constraint, contradiction, parse_constraint
from longshore.models.elastic import Malleable
from longshore.models.funding import Cap, Envelope, FundingTerms, PoolFunding, WhenUnfunded
from longshore.models.job_request import JobRequest
from longshore.models.topology import Gang
from longshore.scheduling.funding.cover import cover
from longshore.scheduling.funding.evaluate import evaluated
from longshore.scheduling.funding.explain import Helps, explain
from longshore.scheduling.funding.facts import (
    Branch,
    Capped,
    Charge,
    Facts,
    Kind,
    Owned,
    Share,
    Use,
    Where,
)
from longshore.scheduling.funding.pool import Asks, as_found, pool_funding
from longshore.scheduling.funding.sizes import MayGrow
from longshore.scheduling.funding.where_paid import where_paid
from tests.support.packing import NOW, a_job

BEFORE = NOW - timedelta(hours=1)
WAITS = Asks(FundingTerms(unfunded=WhenUnfunded.WAIT))


def a_kind(gpu_type: str, **labels: str) -> Kind:
    return Kind(gpu_type, frozenset(labels.items()))


X, Y, A = a_kind("H100", zone="x"), a_kind("H100", zone="y"), a_kind("A100", zone="z")


def facts(
    envelopes: dict[str, dict[str, object]], *kinds: Kind, uses: Iterable[Use] = (),
    charges: Iterable[Charge] = (), buys: bool = False,
) -> Facts:  # fmt: skip
    owned = {
        id: Owned(id, "red", Envelope.model_validate(
            {"name": name, "start": BEFORE, "end": None, **fields}
        ))
        for id, (name, fields) in enumerate(envelopes.items(), 1)
    }  # fmt: skip
    tenants = {"red": Branch(None, BEFORE)}
    return Facts(
        tenants, owned, (), tuple(uses), tuple(charges), frozenset(kinds or (X, Y, A)), buys
    )


def found_for(
    given: Facts, job: JobRequest, asks: Asks = WAITS
) -> tuple[PoolFunding, list[JobRequest]]:
    found = pool_funding(given, "pool", [job], {job.id: asks}, NOW)
    return found, where_paid([job], found, everyone=True)


def goes_to(job: JobRequest, *kinds: Kind) -> set[Kind]:
    """Return the kinds to whose nodes a job may come."""
    return {
        kind
        for kind in kinds or (X, Y, A)
        if job.takes(kind.gpu_type)
        and all(each.allows(dict(kind.labels).get(each.key)) for each in job.constraints)
    }


def test_one_envelope_for_labels():
    given = facts({"x": {"gpus": 8, "labels": {"zone": "x"}, "gpu_type": "h100"}})
    found, (job,) = found_for(given, a_job("a", 8, tenant="red"))
    assert found.of("a").funded
    assert goes_to(job) == {X}
    assert where_paid([job], found, everyone=True) == [job], "said once"
    none, _ = found_for(given._replace(kinds=frozenset({Y, A})), a_job("a", 8, tenant="red"))
    assert none.held == {"a"}
    assert "NO_ENVELOPE" in none.unfunded["a"]


def test_who_may_start_unfunded_is_held_to_its_nodes_where_others_would_be_stopped_for_it():
    given = facts({"x": {"gpus": 8, "labels": {"zone": "x"}}})
    asked = a_job("a", 8, tenant="red")
    found, (narrowed,) = found_for(given, asked, Asks())
    assert where_paid([asked], found) == [asked], "idle GPUs are for everybody"
    assert goes_to(narrowed) == {X}


def test_envelopes_of_two_types_do_not_pay_for_one_job_together():
    given = facts({"h": {"gpus": 4, "gpu_type": "H100"}, "a": {"gpus": 4, "gpu_type": "A100"}})
    found, _ = found_for(given, a_job("a", 6, tenant="red"))
    assert found.held == {"a"}
    assert "no budget pays for 2 GPUs" in found.unfunded["a"]
    small, (job,) = found_for(given, a_job("a", 4, tenant="red"))
    assert small.of("a").funded
    assert goes_to(job) == {X, Y, A}


def test_another_envelope_pays_where_the_first_is_not_for_what_the_job_asks_for():
    labels = {"ex": {"gpus": 8, "labels": {"zone": "x"}}, "any": {"gpus": 8}}
    asked = a_job("a", 4, tenant="red", constraints=(parse_constraint("zone=y"),))
    found, (job,) = found_for(facts(labels), asked)
    assert found.of("a").funded
    assert [each.envelope for each in found.foreseen["a"]] == [2]
    assert job == asked
    types = {"h": {"gpus": 8, "gpu_type": "H100"}, "a": {"gpus": 8, "gpu_type": "A100"}}
    asked = a_job("a", 4, tenant="red", constraints=(parse_constraint("zone=z"),))
    found, (job,) = found_for(facts(types), asked)
    assert [each.envelope for each in found.foreseen["a"]] == [2]
    assert goes_to(job) == {A}


def test_a_job_goes_to_all_kinds_on_which_some_envelope_pays():
    two = {"ex": {"gpus": 4, "labels": {"zone": "x"}}, "ey": {"gpus": 8, "labels": {"zone": "y"}}}
    _, (job,) = found_for(facts(two), a_job("a", 6, tenant="red"))
    assert goes_to(job) == {Y}
    _, (job,) = found_for(facts(two), a_job("a", 4, tenant="red"))
    assert goes_to(job) == {X, Y}
    general = {"ex": {"gpus": 8, "labels": {"zone": "x"}}, "any": {"gpus": 8}}
    asked = a_job("a", 8, tenant="red")
    found, (job,) = found_for(facts(general), asked)
    assert [each.envelope for each in found.foreseen["a"]] == [1], "the most specific one"
    assert job is asked


def test_a_gang_has_nodes_of_kinds_that_the_same_envelopes_are_for():
    two = {"ex": {"gpus": 4, "labels": {"zone": "x"}}, "ey": {"gpus": 4, "labels": {"zone": "y"}}}
    gang = Gang.model_validate({"group_gpus": 4})
    found, _ = found_for(facts(two), a_job("a", 8, tenant="red", gang=gang))
    assert found.held == {"a"}, "4 on each would be two kinds"
    large = {name: {**fields, "gpus": 8} for name, fields in two.items()}
    _, (job,) = found_for(facts(large), a_job("a", 8, tenant="red", gang=gang))
    assert len(goes_to(job)) == 1
    h100 = {"h": {"gpus": 8, "gpu_type": "H100"}, "x": {"gpus": 1, "labels": {"zone": "nowhere"}}}
    _, (job,) = found_for(facts(h100), a_job("a", 8, tenant="red", gang=gang))
    assert goes_to(job) == {X, Y}


def test_a_pool_that_buys_has_its_own_nodes_first():
    mars = {"m": {"gpus": 8, "labels": {"region": "mars"}}, "any": {"gpus": 8}}
    b = a_kind("H100")
    asked = a_job("a", 4, tenant="red")
    found, (job,) = found_for(facts(mars, b, buys=True), asked)
    assert [each.envelope for each in found.foreseen["a"]] == [2]
    assert job == asked
    alone = {"m": {"gpus": 8, "labels": {"region": "mars"}}}
    found, (job,) = found_for(facts(alone, b, buys=True), asked)
    assert found.of("a").funded, "such nodes may be bought"
    assert job.constraints == (Constraint("region", ("mars",)),)
    assert not goes_to(job, b)


def test_nodes_are_bought_only_where_an_envelope_is_for_them():
    asked = a_job("a", 4, tenant="red")
    beside: dict[str, dict[str, object]] = {"x": {"gpus": 1, "labels": {"zone": "x"}}}
    mars = beside | {"m": {"gpus": 16, "labels": {"region": "mars"}}}
    _, (job,) = found_for(facts(mars, X, buys=True), asked)
    assert not goes_to(job, a_kind("A100"), X)
    assert goes_to(job, a_kind("A100", region="mars"))
    own = asked.model_copy(update={"constraints": (parse_constraint("zone=x"),)})
    _, (job,) = found_for(facts(mars, X, buys=True), own)
    assert set(map(str, job.constraints)) == {"zone=x", "region=mars"}
    typed = beside | {"m": {"gpus": 16, "gpu_type": "GB300"}}
    _, (job,) = found_for(facts(typed, X, buys=True), asked)
    assert job.gpu_type == "GB300"
    both = {each.lower(): {"gpus": 4, "gpu_type": each} for each in ("H200", "B200")}
    found, _ = found_for(facts(both, X, buys=True), a_job("a", 8, tenant="red"))
    assert found.held == {"a"}, "no node has both types"
    y = {"y": {"gpus": 4, "labels": {"zone": "y"}}} | mars
    _, (job,) = found_for(facts(y, X, Y, buys=True), asked)
    assert not goes_to(job, X, a_kind("A100"), a_kind("A100", zone="z"))
    assert goes_to(job, Y) | goes_to(job, a_kind("A100", region="mars"))


def test_a_job_that_runs_grows_onto_nodes_for_which_its_envelope_is():
    where = Where("pool", "H100", X.labels | {("name", "x1")})
    use = Use("m", 1, "red", BEFORE, (Share(0, where, tuple(range(8)), 1000, "x1"),),
              WAITS.terms)  # fmt: skip
    charge = Charge("m", 1, 0, 1, tuple(range(8)), 1000, False, BEFORE, 1)
    given = facts({"x": {"gpus": 16, "labels": {"zone": "x"}}}, uses=[use], charges=[charge])
    sizes = Malleable(min=4, max=16, step=4)
    job = a_job("m", 16, tenant="red", malleable=sizes, attempt=2,
                gang=Gang.model_validate({"group_gpus": 4}))  # fmt: skip
    found = pool_funding(given, "pool", [], {}, NOW, growing=[MayGrow(job, 8)])
    (grown,) = where_paid([job], found)
    assert goes_to(grown) == {X}
    everywhere = facts({"any": {"gpus": 16}}, uses=[use], charges=[charge])
    found = pool_funding(everywhere, "pool", [], {}, NOW, growing=[MayGrow(job, 8)])
    assert where_paid([job], found) == [job]


_KINDS = st.builds(
    lambda gpu_type, zone, rack: a_kind(gpu_type, **({"zone": zone} if zone else {}), rack=rack),
    st.sampled_from(["H100", "A100"]), st.sampled_from(["", "x", "y"]), st.sampled_from("12"),
)  # fmt: skip
_ENVELOPES = st.lists(
    st.fixed_dictionaries(
        {"gpus": st.integers(1, 8)},
        optional={
            "gpu_type": st.sampled_from(["h100", "a100"]),
            "labels": st.dictionaries(st.sampled_from(["zone", "rack"]),
                                      st.sampled_from(["x", "y", "1"]), max_size=2),
        },
    ),
    max_size=4,
)  # fmt: skip
_CONSTRAINTS = (
    st.lists(
        st.sampled_from(["zone=x", "zone!=x", "!zone", "rack in (1, 2)", "rack=2"]).map(
            parse_constraint
        ),
        max_size=2,
        unique=True,
    )
    .map(tuple)
    .filter(lambda constraints: contradiction(constraints) is None)
)


@given(
    kinds=st.sets(_KINDS, min_size=1, max_size=5), envelopes=_ENVELOPES,
    constraints=_CONSTRAINTS, gpu_type=st.sampled_from([None, "H100"]), gpus=st.integers(1, 8),
    buys=st.booleans(), more=_KINDS,
)  # fmt: skip
def test_wherever_it_is_planned_somebody_pays_and_it_is_planned_if_anybody_does(
    kinds: set[Kind], envelopes: list[dict[str, object]], constraints: tuple[Constraint, ...],
    gpu_type: str | None, gpus: int, buys: bool, more: Kind,
):  # fmt: skip
    given_ = facts({f"e{n}": each for n, each in enumerate(envelopes)}, *kinds, buys=buys)
    asked = a_job("a", gpus, tenant="red", gpu_type=gpu_type, constraints=constraints)
    found, (job,) = found_for(given_, asked)
    _, room = evaluated(given_, NOW)
    pays = set[Kind]()
    if buys:
        kinds = {*kinds, more}
    for kind in goes_to(asked, *kinds):
        where = Where("pool", kind.gpu_type, kind.labels)
        use = Use("a", 1, "red", NOW, (Share(0, where, tuple(range(gpus)), 1000),), WAITS.terms)
        if cover(room, use).funded:
            pays.add(kind)
    funded = found.of("a").funded
    assert funded or not pays
    if goes_to(asked, *kinds) and not buys:
        assert funded is bool(pays)
    if funded:
        assert contradiction(job.constraints) is None
        assert goes_to(job, *kinds) <= pays
    if pays and not buys:
        assert goes_to(job, *kinds)


def test_of_several_kinds_it_is_told_of_the_one_that_a_limit_alone_keeps_it_from():
    """A cap is over three types, and two of their envelopes are used up: the third is not, and
    the job waits for the cap."""
    types = {"a": "A100", "h": "H100", "l": "L40S"}
    place = {name: Where("pool", kind, frozenset()) for name, kind in types.items()}
    uses = [
        Use(f"runs-{name}", 1, "red", BEFORE, (Share(0, place[name], (0, 1, 2, 3), 1000),))
        for name in ("a", "l")
    ]
    charges = [
        Charge(use.job_id, 1, 0, id, (0, 1, 2, 3), 1000, False, BEFORE, id)
        for use, id in zip(uses, (1, 3), strict=True)
    ]
    given = facts(
        {name: {"gpus": 4, "gpu_type": kind} for name, kind in types.items()},
        *(a_kind(kind) for kind in types.values()), uses=uses, charges=charges,
    )  # fmt: skip
    cap = Cap(name="all", gpus=8, envelopes=("a", "h", "l"))
    given = given._replace(caps=(Capped(1, "red", cap, frozenset({1, 2, 3})),))
    for gone in ((), (0, 1)):  # nearly as much as the job wants is left of another type
        some = [charges[0]._replace(gpus=gone or (0, 1, 2, 3)), charges[1]]
        less = [uses[0]._replace(shares=(uses[0].shares[0]._replace(gpus=some[0].gpus),)), uses[1]]
        tight = cap.model_copy(update={"gpus": 4 + len(some[0].gpus)})
        capped = (Capped(1, "red", tight, frozenset({1, 2, 3})),)
        asked = given._replace(uses=tuple(less), charges=tuple(some), caps=capped)
        found, _ = found_for(asked, a_job("waits", 4, tenant="red", vram_per_gpu=0))
        assert "(CAP)" in found.unfunded["waits"]
    job = a_job("waits", 4, tenant="red", vram_per_gpu=0)
    found, _ = found_for(given, job)
    assert "a cap over envelopes leaves no room (CAP)" in found.unfunded["waits"]
    room, waits, _ = as_found(given, "pool", [job], {"waits": WAITS}, job, NOW)
    told = explain(room, waits)
    assert [(rung.name, rung.on, rung.gives, rung.code) for rung in told.rungs] == [
        ("h", "", 0, "CAP"), ("a", "A100", 0, "NO_ROOM"), ("l", "L40S", 0, "NO_ROOM"),
    ]  # fmt: skip
    assert Helps.CAP in [remedy.what for remedy in told.remedies]
