"""Models that are made without a look at their values."""

from models.placement import Candidate, PackingRule, ScoreTerms

TERMS = {
    "rule": PackingRule.BEST_FIT, "utilization": 0.5, "fragmentation": 0.25, "expiry": 0.0,
    "provider": 0.125, "total": 0.875,
}  # fmt: skip


def test_a_trusted_model_is_as_one_that_was_looked_at() -> None:
    """Also in the order of its fields, in which it is shown and written."""
    trusted, looked_at = ScoreTerms.trusted(**TERMS), ScoreTerms.model_validate(TERMS)
    assert trusted == looked_at
    assert repr(trusted) == repr(looked_at)
    assert trusted.model_dump_json() == looked_at.model_dump_json()


def test_what_is_not_given_is_as_by_default() -> None:
    terms = ScoreTerms.trusted(**TERMS)
    trusted = Candidate.trusted(terms=terms, gpu_indices=(0,), node_id="node")
    assert trusted == Candidate(node_id="node", gpu_indices=(0,), terms=terms)
    assert trusted.link is None
