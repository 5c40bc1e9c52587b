"""Where what is kept of nodes and GPUs in use is not what placements and leases say."""

from longshore.activities.placements import BORROWS

HELD_DIFFERENCES = f"""
    WITH held AS (
        SELECT n.id, n.cpu_milli_used, n.ram_mb_used, n.storage_mb_s_used, n.milliwatts_used,
               coalesce(sum(p.cpu_milli), 0) AS cpu_milli, coalesce(sum(p.ram_mb), 0) AS ram_mb,
               coalesce(sum(p.storage_mb_s), 0) AS storage_mb_s,
               coalesce(sum(p.milliwatts), 0) AS milliwatts
          FROM nodes n
          LEFT JOIN placements p ON p.node_id = n.id AND p.ended_at IS NULL AND NOT {BORROWS}
         GROUP BY n.id)
    SELECT 'node ' || id AS subject, 'cpu_milli_used' AS what, cpu_milli_used AS counted,
           cpu_milli AS held
      FROM held WHERE cpu_milli_used <> cpu_milli
    UNION ALL
    SELECT 'node ' || id, 'ram_mb_used', ram_mb_used, ram_mb FROM held WHERE ram_mb_used <> ram_mb
    UNION ALL
    SELECT 'node ' || id, 'storage_mb_s_used', storage_mb_s_used, storage_mb_s
      FROM held WHERE storage_mb_s_used <> storage_mb_s
    UNION ALL
    SELECT 'node ' || id, 'milliwatts_used', milliwatts_used, milliwatts
      FROM held WHERE milliwatts_used <> milliwatts
    UNION ALL
    SELECT 'node ' || g.node_id || ' GPU ' || g.index, 'vram_mb_used', g.vram_mb_used,
           coalesce(sum(l.vram_mb), 0)
      FROM gpus g LEFT JOIN leases l
        ON l.node_id = g.node_id AND l.gpu_index = g.index AND l.ended_at IS NULL
       AND l.borrowed_from IS NULL
     GROUP BY g.node_id, g.index HAVING g.vram_mb_used <> coalesce(sum(l.vram_mb), 0)
    UNION ALL
    SELECT 'node ' || g.node_id || ' GPU ' || g.index, 'milli_used', g.milli_used,
           coalesce(sum(l.milli), 0)
      FROM gpus g LEFT JOIN leases l
        ON l.node_id = g.node_id AND l.gpu_index = g.index AND l.ended_at IS NULL
       AND l.borrowed_from IS NULL
     GROUP BY g.node_id, g.index HAVING g.milli_used <> coalesce(sum(l.milli), 0)
    UNION ALL
    SELECT 'node ' || g.node_id || ' GPU ' || g.index, 'slices_used', g.slices_used,
           coalesce(sum(l.slices), 0)
      FROM gpus g LEFT JOIN leases l
        ON l.node_id = g.node_id AND l.gpu_index = g.index AND l.ended_at IS NULL
       AND l.borrowed_from IS NULL
     GROUP BY g.node_id, g.index HAVING g.slices_used <> coalesce(sum(l.slices), 0)
    UNION ALL
    SELECT 'job ' || p.job_id, 'its placement', cardinality(p.gpu_indices), count(l.id)
      FROM placements p LEFT JOIN leases l
        ON l.job_id = p.job_id AND l.attempt = p.attempt AND l.rank = p.rank
       AND l.ended_at IS NULL
     WHERE p.ended_at IS NULL
     GROUP BY p.job_id, p.attempt, p.rank HAVING count(l.id) <> cardinality(p.gpu_indices)
    UNION ALL
    SELECT 'node ' || p.node_id || ', GPUs of a lent spare', 'job ' || p.job_id,
           cardinality(p.gpu_indices),
           (SELECT count(*) FROM gpus g JOIN leases l
                ON l.node_id = g.node_id AND l.gpu_index = g.index AND l.ended_at IS NULL
               AND l.job_id = p.borrowed_from
             WHERE g.node_id = p.node_id AND g.index = ANY (p.gpu_indices)
               AND g.borrowed_by = p.job_id)
      FROM placements p
     WHERE p.ended_at IS NULL AND {BORROWS}
       AND cardinality(p.gpu_indices)
           <> (SELECT count(*) FROM gpus g JOIN leases l
                   ON l.node_id = g.node_id AND l.gpu_index = g.index AND l.ended_at IS NULL
                  AND l.job_id = p.borrowed_from
                WHERE g.node_id = p.node_id AND g.index = ANY (p.gpu_indices)
                  AND g.borrowed_by = p.job_id)
    UNION ALL
    SELECT 'node ' || n.id, 'jobs, with the one that holds it alone', count(DISTINCT p.job_id), 1
      FROM nodes n LEFT JOIN placements p ON p.node_id = n.id AND p.ended_at IS NULL
     WHERE n.held_alone_by IS NOT NULL
     GROUP BY n.id HAVING count(DISTINCT p.job_id) <> 1 OR min(p.job_id) <> n.held_alone_by
     ORDER BY 1, 2
"""
"""Rows of `models.reconcile.LedgerSeen`. Slices do not overlap, so the set of all is the sum of
the sets. A lent spare is held by its gang, and its GPUs say who runs there."""
