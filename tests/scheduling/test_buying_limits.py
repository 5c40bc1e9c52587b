"""The limit of an order stays near to what was decided, whatever the book becomes meanwhile."""

from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st

from longshore.models.money import micro_of
from tests.support.buying import a_job, cloud, decided, exchange

HOUR = timedelta(hours=1)
THIN = exchange(("1.20", 8), ("19.00", 1600))
"""One cheap node before many dear ones: the recommended limit is that of the dear ones."""


def test_it_is_at_most_the_slippage_above_the_last_gpu():
    (plan,) = decided([a_job(gpus=8)], THIN).plans
    assert (plan.marginal, plan.limit) == (micro_of("1.20"), micro_of("1.32"))
    assert plan.max_total == plan.limit * 10  # 8 GPUs for an hour and a quarter
    (closer,) = decided([a_job(gpus=8)], THIN, slippage=0).plans
    assert closer.limit == micro_of("1.20")


def test_it_is_at_most_what_makes_its_option_cost_as_much_as_the_next_best():
    decision = decided([a_job(gpus=8)], THIN, cloud(("1.60", 8)), slippage=10)
    (plan,) = decision.plans
    assert plan.window is not None
    (best,) = [each for each in decision.options if each.chosen]
    rival = min(each.total for each in decision.options if not each.chosen)
    assert 0 < plan.max_total - plan.expected_cost <= rival - best.total
    assert micro_of("1.20") < plan.limit < micro_of("1.90")
    assert best.max_total == plan.most  # what is tried when it is refused may cost more


prices = st.decimals("0.5", "9.99", places=2).map(str)
books = st.lists(st.tuples(prices, st.sampled_from([8, 16, 64])), min_size=1, max_size=5)


@given(books, st.lists(st.tuples(prices, st.sampled_from([1, 2, 8])), max_size=3),
       st.sampled_from([1, 4, 8, 16]), st.sampled_from([0.0, 0.1, 3.0]))  # fmt: skip
def test_no_order_may_cost_more_than_the_next_best_way_or_the_slippage(
    asks: list[tuple[str, int]], offers: list[tuple[str, int]], gpus: int, slippage: float
):
    decision = decided([a_job(gpus=gpus)], exchange(*asks), cloud(*offers), slippage=slippage)
    for chosen in [each for each in decision.options if each.chosen and each.plans]:
        rivals = [
            each.total for each in decision.options
            if each.round == chosen.round and not each.chosen and each.lost.startswith("costs ")
        ]  # fmt: skip
        for plan in chosen.plans:
            if plan.marginal is None:
                assert plan.offer is not None
                continue
            assert plan.marginal <= plan.limit <= round(plan.marginal * (1 + slippage))
        bought = [plan for plan in chosen.plans if plan.marginal is not None]
        if bought and rivals and all(plan.limit > (plan.marginal or 0) for plan in bought):
            more = sum(plan.max_total - plan.expected_cost for plan in bought)
            assert more <= min(rivals) - chosen.total + len(bought)  # each is rounded up


def test_by_the_seeds_rule_it_is_at_most_what_makes_it_cost_as_much_as_the_next_book():
    def at(price: str) -> tuple[int, int]:
        other = exchange((price, 64)).model_copy(update={"provider": "another"})
        (plan,) = decided([a_job(gpus=8)], THIN, other, rule="seed").plans
        assert plan.provider == "exchange"
        assert plan.marginal is not None
        return plan.marginal, plan.limit

    assert at("1.25") == (micro_of("1.20"), micro_of("1.25"))
    # Farther than that the slippage is nearer; no limit is below the price of the last GPU.
    assert at("1.60") == (micro_of("1.20"), micro_of("1.32"))
    assert at("1.20") == (micro_of("1.20"), micro_of("1.20"))


def test_by_the_seeds_rule_an_offer_bounds_no_order_of_a_book():
    """It takes a book for so many GPUs whatever offers cost."""
    (plan,) = decided([a_job(gpus=8)], THIN, cloud(("1.21", 8)), rule="seed").plans
    assert (plan.provider, plan.limit) == ("exchange", micro_of("1.32"))
