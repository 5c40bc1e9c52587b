"""What was paid and what became of it, summed from the ledger: one query for all who show money.

A market's fee is no part of a block's account in the ledger. Shown is what a sale has brought less
its fee: so idle time, which gets what sales brought, carries the fees too, and the sums hold
(`models.spending.Account`).
"""

OF_LEDGER = """
    coalesce(sum(CASE l.kind WHEN 'purchase' THEN l.micro WHEN 'refund' THEN -l.micro END), 0)
        ::bigint AS paid,
    coalesce(sum(CASE WHEN l.kind <> 'resale' THEN 0 WHEN l.credit LIKE 'block:%' THEN l.micro
                      ELSE -l.micro END), 0)::bigint AS resold,
    coalesce(sum(CASE WHEN l.kind <> 'fee' THEN 0 WHEN l.debit LIKE 'fee:%' THEN l.micro
                      ELSE -l.micro END), 0)::bigint AS fees,
    coalesce(sum(CASE WHEN l.debit LIKE 'job:%' THEN l.micro
                      WHEN l.credit LIKE 'job:%' THEN -l.micro END), 0)::bigint AS used,
    coalesce(sum(CASE WHEN l.debit LIKE 'idle:%' THEN l.micro
                      WHEN l.credit LIKE 'idle:%' THEN -l.micro END), 0)::bigint AS unused
"""
"""Of rows `l` of the ledger, in micro-dollars; `unused` is without fees."""

ACCOUNT_OF_BLOCK = f"""
    LEFT JOIN LATERAL (SELECT {OF_LEDGER} FROM ledger l WHERE l.block_id = b.id) a ON true
"""
"""The sums `a` of all rows of a block `b`."""

_ESTIMATED = """
    CASE WHEN o.is_machine AND o.order_id IS NOT NULL AND b.state <> 'ENDED' THEN greatest(
        round(CASE WHEN jsonb_typeof(o.request #> '{offer,price}') = 'number'
                   THEN (o.request #>> '{offer,price}')::numeric
                   ELSE b.price_micro_per_gpu_hour END
              * coalesce(b.gpus_per_node, 0) * b.nodes
              * extract(epoch FROM
                    coalesce((SELECT CASE WHEN bool_and(m.state = 'ENDED') THEN max(m.ended_at) END
                                FROM machines m WHERE m.block_id = b.id), clock_timestamp())
                    - coalesce(o.sent_at, b.starts_at)) / 3600)
        - a.paid, 0)::bigint ELSE 0 END
"""
"""What a block `b` of the order `o` has cost beyond what the market has told."""

OF_BLOCK = f"""
    {_ESTIMATED} AS estimated_micro_usd,
    a.paid AS paid_micro_usd, a.resold AS resold_micro_usd, a.fees AS fees_micro_usd,
    a.used AS used_micro_usd,
    CASE WHEN b.state = 'ENDED' THEN a.unused + a.fees ELSE 0 END AS idle_micro_usd,
    CASE WHEN b.state = 'ENDED' THEN 0 ELSE a.paid - a.resold + a.fees - a.used END
        AS open_micro_usd
"""
"""The account of a block `b` with these sums."""

SUMMED = """
    coalesce(sum(a.paid), 0)::bigint AS paid_micro_usd,
    coalesce(sum(a.resold), 0)::bigint AS resold_micro_usd,
    coalesce(sum(a.fees), 0)::bigint AS fees_micro_usd,
    coalesce(sum(a.used), 0)::bigint AS used_micro_usd,
    coalesce(sum(a.unused + a.fees) FILTER (WHERE a.ended), 0)::bigint AS idle_micro_usd,
    coalesce(sum(a.paid - a.resold + a.fees - a.used
                 - CASE WHEN a.ended THEN a.unused + a.fees ELSE 0 END), 0)::bigint
        AS open_micro_usd
"""
"""The account of several blocks with the sums `a`, each `ended` or not. Of rows of a time alone
what is open may be below zero: what was paid before was divided in it."""

ACCOUNT_OF_PURCHASE = f"""
    LEFT JOIN LATERAL (
        SELECT {SUMMED}
          FROM (SELECT {OF_LEDGER}, coalesce(bool_and(b.state = 'ENDED'), true) AS ended
                  FROM ledger l LEFT JOIN blocks b ON b.id = l.block_id
                 WHERE l.purchase_id = p.id GROUP BY l.block_id) a) a ON true
"""
"""The account `a` of a purchase `p`. Of an order that brought no block nothing is left open."""

OF_PURCHASE = f"""
    (SELECT coalesce(sum({_ESTIMATED}), 0)::bigint
       FROM blocks b JOIN orders o ON o.key = b.id {ACCOUNT_OF_BLOCK}
      WHERE b.purchase_id = p.id) AS estimated_micro_usd,
    a.*, coalesce(p.request #>> '{{options,0,provider}}', '') AS provider,
    coalesce(p.request #>> '{{options,0,instance_type}}', '') AS instance_type,
    coalesce((p.request ->> 'nodes')::int, 1) AS wanted,
    (SELECT coalesce(jsonb_object_agg(tenant, part) FILTER (WHERE NOT alone), '{{}}')
       FROM (SELECT tenant, part, bool_and(tenant = p.tenant) OVER () AS alone
               FROM purchase_parts(p.committed, p.split, p.tenant, p.longer)
              WHERE part > 0) AS parts) AS split_micro_usd
"""
"""Of a purchase `p` with the account `a`: that, its first option, and what each tenant pays."""
