"""The activities of `ReconcileWorkflow`: find what disagrees, and mend what is safe
(`activities.mends`). Two looks find: what is gone in the second was a step under way."""

import asyncio

from temporalio import activity
from temporalio.client import Client

from longshore.activities.database import Database
from longshore.activities.error_translation import reports_errors
from longshore.activities.markets.findings import market_findings
from longshore.activities.mends import Mends, in_words, runs_on
from longshore.activities.metrics import SILENT, Metrics
from longshore.activities.observation import observe
from longshore.activities.registry import RegistryActivities
from longshore.activities.signals import Signals
from longshore.activities.stored_specs import UNKNOWN, stored_spec
from longshore.models.node import ENGINE_FENCE, Liveness
from longshore.models.node_messages import StopProcessRequest
from longshore.models.placement import PlacementKey
from longshore.models.reconcile import (
    Finding,
    Mend,
    NotJudged,
    ReconcileReport,
    ReconcileRequest,
    Stop,
)
from longshore.models.reconcile_seen import Observed
from longshore.models.settings import Settings
from longshore.scheduling.reconcile import compare
from longshore.scheduling.reconcile_lost import lost

_AT_MOST = 300
"""Findings that one run reports: a report travels."""


class ReconcileActivities:
    """Activities of `ReconcileWorkflow` on database and Temporal."""

    def __init__(
        self,
        database: Database,
        temporal: Client,
        signals: Signals,
        registry: RegistryActivities,
        liveness: Liveness,
        metrics: Metrics = SILENT,
        settings: Settings | None = None,
    ) -> None:
        """Markets are compared too where there are `settings`."""
        self._database = database
        self._temporal = temporal
        self._mends = Mends(database, temporal, signals, registry, metrics)
        self._node_lost_after = liveness.heartbeat_timeout + liveness.recall_timeout
        self._metrics = metrics
        self._settings = settings
        self._engine_fence = settings.engine_fence if settings else ENGINE_FENCE

    @activity.defn
    @reports_errors
    async def find_differences(self, request: ReconcileRequest) -> ReconcileReport:
        """Return what database, workflows, agents and markets disagree on; changes nothing."""
        seen = await self._observe(request)
        found = compare(seen, request)
        lately = [each for each in lost(seen, request) if not each.by(seen.at)]
        if found or lately:
            await asyncio.sleep(request.second_look.total_seconds())
            seen = await self._observe(request)
            before = {(each.kind, each.subject) for each in found}
            found = [
                each for each in compare(seen, request) if (each.kind, each.subject) in before
            ]
            still = {each.finding.subject for each in lost(seen, request)}
            lately = [each for each in lately if each.finding.subject in still]
        at_markets = await self._at_markets()
        stops = [await self._with_stop(each) for each in found[:_AT_MOST]]
        return ReconcileReport(
            findings=(*stops, *at_markets[: _AT_MOST - len(stops)]),
            left_out=max(len(found) + len(at_markets) - _AT_MOST, 0),
            jobs=sum(job.ended_at is None for job in seen.jobs),
            nodes=len(seen.nodes),
            pools=len(seen.pools),
            dry_run=request.dry_run,
            too_recent=len(lately),
            not_judged=tuple(
                NotJudged(
                    subject=each.finding.subject, problem=each.finding.problem, after=each.after
                )
                for each in lately[:_AT_MOST]
            ),
            again_at=max((each.after for each in lately), default=None),
        )

    async def _observe(self, request: ReconcileRequest) -> Observed:
        return await observe(
            self._database, self._temporal, request, self._node_lost_after, self._engine_fence
        )

    @activity.defn
    @reports_errors
    async def mend_difference(self, finding: Finding) -> Finding:
        """Mend one finding, and return it with what was done."""
        assert finding.mend is not None
        why_not = await self._mends.mend(finding.mend, finding.stop)
        if why_not:
            activity.logger.warning("%s: %s; not mended: %s", finding.subject, finding.problem,
                                    why_not)  # fmt: skip
            return finding.model_copy(update={"done": f"not mended: {why_not}"})
        done = in_words(finding.mend)
        activity.logger.warning("%s: %s; %s", finding.subject, finding.problem, done)
        return finding.model_copy(update={"mended": True, "done": done})

    async def _at_markets(self) -> tuple[Finding, ...]:
        if self._settings is None:
            return ()
        return await market_findings(self._database, self._settings, self._metrics)

    async def _with_stop(self, finding: Finding) -> Finding:
        """Add what must have ended on a node before its GPUs count as free."""
        key = _ends(finding.mend)
        if key is None:
            return finding
        async with self._database.transaction() as connection:
            rows = await runs_on(connection, key.job_id)
        if not rows or rows[0]["attempt"] != key.attempt:
            return finding
        spec = stored_spec(key.job_id, rows[0]["spec"]) or UNKNOWN
        request = StopProcessRequest(
            key=key, signal=spec.stop_signal, grace=spec.grace,
            reason=f"reconcile: {finding.problem}"[:200],
        )  # fmt: skip
        stop = Stop(
            node_id=rows[0]["node_id"], request=request,
            others=tuple(row["node_id"] for row in rows[1:]),
        )  # fmt: skip
        return finding.model_copy(update={"stop": stop})


def _ends(mend: Mend | None) -> PlacementKey | None:
    """Return the attempt whose leases a mend ends."""
    if mend and mend.end_job:
        return PlacementKey(job_id=mend.end_job.result.job_id, attempt=mend.end_job.attempt)
    if mend and mend.end_attempt:
        return PlacementKey(job_id=mend.end_attempt.job_id, attempt=mend.end_attempt.attempt)
    return None
