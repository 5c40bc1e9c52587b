"""What the page of budgets says of envelopes, for fixed states."""

from longshore.console.budgets_view import envelopes_html
from longshore.models.funding import Envelope
from longshore.models.funding_use import FundingState
from longshore.models.funding_views import BudgetView, EnvelopeState, EnvelopeView
from tests.support.screens import NOW


def shown(state: EnvelopeState = EnvelopeState.OPEN, **fields: object) -> str:
    usual = {"name": "main", "gpus": 8, "start": NOW, "end": None}
    spec = Envelope.model_validate(usual | fields)
    each = EnvelopeView(id=1, spec=spec, state=state, used=0, lent=0)
    budget = BudgetView(tenant="red", since=NOW, envelopes=(each,))
    return envelopes_html(FundingState(at=NOW, budgets=(budget,)))


def test_an_envelope_that_is_not_shared_says_so():
    for state in EnvelopeState:
        assert "not shared with relatives" in shown(state, sharing="none")
        assert "not shared" not in shown(state, sharing="family")
