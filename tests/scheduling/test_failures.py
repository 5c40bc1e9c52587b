"""When another attempt cannot help."""

from datetime import UTC, datetime

from longshore.models.job_status import AttemptRecord
from longshore.models.retry import FailureClass, RetryPolicy, RetryRule
from longshore.scheduling.failures import why_no_retry

START, NODE, USER = FailureClass.START, FailureClass.NODE, FailureClass.USER


def an_attempt(node: str, failure: FailureClass | None, failed_on: str = "") -> AttemptRecord:
    return AttemptRecord(
        attempt=1, node_id=node, gpu_indices=(0,), failure=failure, failed_on=failed_on,
        placed_at=datetime(2026, 11, 20, tzinfo=UTC),
    )  # fmt: skip


def test_a_start_failure_on_two_nodes_is_the_jobs_own():
    attempts = [an_attempt("b", START), an_attempt("a", START)]
    assert why_no_retry(START, attempts).endswith("could not be started on a and b")


def test_a_start_failure_that_came_again_on_the_same_node_may_be_the_nodes():
    attempts = [an_attempt("a", START), an_attempt("a", START), an_attempt("b", NODE)]
    assert why_no_retry(START, attempts) == ""


def test_other_failures_are_tried_wherever_they_came():
    attempts = [an_attempt("a", START), an_attempt("b", START), an_attempt("c", USER)]
    for failure in FailureClass:
        if failure is not START:
            assert why_no_retry(failure, attempts) == ""


def test_of_a_gang_the_node_counts_where_it_failed():
    same = [an_attempt("a", START, "c"), an_attempt("b", START, "c")]
    assert why_no_retry(START, same) == ""
    other = [an_attempt("a", START, "b"), an_attempt("a", START, "c")]
    assert "on b and c" in why_no_retry(START, other)


def test_a_cut_network_follows_the_rule_of_lost_nodes_unless_it_has_its_own():
    once = RetryRule(max_retries=1)
    assert RetryPolicy(node=once).rule_for(FailureClass.NETWORK) == once
    policy = RetryPolicy(network=once)
    assert policy.rule_for(FailureClass.NETWORK) == once
    assert policy.rule_for(NODE) == RetryPolicy().node
