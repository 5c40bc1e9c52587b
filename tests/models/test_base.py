"""Models that are made without a look at their values, and texts that every message can carry."""

import pytest

from longshore.models.departures import NodeDrain, SpotNotice
from longshore.models.messages import CommandReason
from longshore.models.node_messages import ProcessReport, Progress
from longshore.models.placement import Candidate, PackingRule, ScoreTerms

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


def test_a_trusted_copy_has_what_is_not_given_as_it_was() -> None:
    terms = ScoreTerms.model_validate(TERMS)
    copy = terms.trusted_copy({"total": 0.5})
    assert copy == ScoreTerms.model_validate({**TERMS, "total": 0.5})
    assert repr(copy) == repr(terms).replace("0.875", "0.5")
    assert terms.total == 0.875


@pytest.mark.parametrize("length", [4_001, 2_000_000])
def test_a_long_reason_is_cut_wherever_it_comes_in(length: int) -> None:
    text, cut = "é" * length, "é" * 3_999 + "…"
    assert CommandReason(reason=text).reason == cut
    assert NodeDrain(reason=text).reason == SpotNotice(reason=text).reason == cut
    assert Progress(log_error=text, checkpoint_error=text).checkpoint_error == cut
    report = ProcessReport(message=text, stopped_for=text, checkpoint_error=text)
    assert report.message == report.stopped_for == report.checkpoint_error == cut
    assert ProcessReport.model_validate_json(report.model_dump_json()) == report


def test_a_reason_that_is_short_enough_stays_and_loses_its_nul() -> None:
    assert CommandReason(reason="R" * 4_000).reason == "R" * 4_000
    assert CommandReason(reason="a\0b").reason == "ab"
