"""Where what is kept of charges is not what the charges say."""

FUNDING_DIFFERENCES = """
    WITH open AS (
        SELECT id, job_id, attempt, rank, envelope_id, lent,
               cardinality(gpu_indices) * milli AS amount
          FROM charges WHERE ended_at IS NULL
    ), sums AS (
        SELECT e.id, 'envelope ' || e.tenant || '/' || e.name AS subject, e.used, e.lent,
               coalesce(sum(o.amount), 0)::bigint AS open_used,
               coalesce(sum(o.amount) FILTER (WHERE o.lent), 0)::bigint AS open_lent
          FROM envelopes e LEFT JOIN open o ON o.envelope_id = e.id GROUP BY e.id)
    SELECT subject, 'used' AS what, used AS counted, open_used AS held
      FROM sums WHERE used <> open_used
    UNION ALL
    SELECT subject, 'lent', lent, open_lent FROM sums WHERE lent <> open_lent
    UNION ALL
    SELECT 'cap ' || k.tenant || '/' || k.name, 'used', k.used, coalesce(sum(o.amount), 0)
      FROM funding_caps k
      LEFT JOIN funding_cap_members m ON m.cap_id = k.id
      LEFT JOIN open o ON o.envelope_id = m.envelope_id
     WHERE k.removed_at IS NULL
     GROUP BY k.id HAVING k.used <> coalesce(sum(o.amount), 0)
    UNION ALL
    SELECT 'job ' || o.job_id, 'attempt ' || o.attempt, sum(o.amount), 0
      FROM open o JOIN placements p USING (job_id, attempt, rank)
     WHERE p.ended_at IS NOT NULL GROUP BY o.job_id, o.attempt
"""
"""Rows of `models.reconcile.LedgerSeen`, in thousandths of a GPU: kept sums, and what is charged
to an attempt whose placement has ended."""
