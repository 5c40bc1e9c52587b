"""Which types a market of books is asked for."""

from typing import Any

from longshore.models.buying import BuyingPolicy
from longshore.models.job_request import JobRequest
from longshore.models.market import InstanceType, NoQuote
from longshore.scheduling.buying.types_to_ask import MOST_TYPES, types_to_ask
from tests.support.buying import a_job, decided, exchange

TRADED = [
    InstanceType.parse(name)
    for name in (
        "8xA100", "8xB200", "8xB300", "8xGB200", "8xGB300", "8xH100", "8xH20", "8xL40S",
        "4xH200", "8xH200",
    )
]  # fmt: skip
ANY = a_job("any", 1, gpu_type=None, vram_per_gpu=0).request


def asked(*jobs: JobRequest, **policy: Any) -> list[str]:
    return [str(kind) for kind in types_to_ask(TRADED, jobs, BuyingPolicy(**policy))[0]]


def test_those_that_jobs_name_come_first_in_the_order_of_the_queue():
    b, h = (a_job(name, 8, gpu_type=name, vram_per_gpu=0).request for name in ("B300", "H200"))
    assert asked(ANY, h, b)[:2] == ["8xH200", "8xB300"]
    assert len(asked(ANY, h, b)) == MOST_TYPES
    assert asked(h) == ["8xH200"]


def test_then_that_of_the_warm_target_then_what_is_nearest_to_a_job():
    warm = {"enabled": True, "fast_warm_gpus": 8, "fast_warm_type": "H200"}
    named = a_job("b", 8, gpu_type="B300", vram_per_gpu=0).request
    assert asked(named, **warm) == ["8xB300", "4xH200", "8xH200"]
    assert asked(**warm) == ["4xH200", "8xH200"]
    small = a_job("a", 4, gpu_type=None, vram_per_gpu=100).request
    assert asked(small) == ["4xH200", "8xH200", "8xB200", "8xB300"]


def test_what_the_policy_forbids_takes_no_place():
    assert asked(ANY, instance_types=("8xH200",)) == ["8xH200"]


def test_what_is_left_out_is_not_said_to_be_sold_by_nobody():
    kinds, left_out = types_to_ask(TRADED, [ANY], BuyingPolicy())
    assert len(kinds) + len(left_out) == len(TRADED)
    quote = next(each for each in left_out if each.instance_type == "8xB300")
    assert isinstance(quote.answer, NoQuote)
    market = exchange()
    market = market.model_copy(update={"quotes": (*market.quotes, quote)})
    decision = decided([a_job("b", 8, gpu_type="B300", vram_per_gpu=0)], market)
    assert decision.in_vain == {}
    assert "8xB300: it is not asked for: 8 other types come first" in decision.reason
    assert [limit.name for limit in decision.limits] == ["market-away"]
