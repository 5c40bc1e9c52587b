"""Whom a job may name as its sponsors."""

import difflib

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from longshore.models.job import JobSpec
from longshore.models.text import listed
from longshore.models.visible import shown

_NAMED = 10


async def why_no_sponsor(connection: AsyncConnection, spec: JobSpec) -> str:
    """Return which sponsors of a job are tenants that nobody knows, and who would lend to its
    tenant, or that its own tenant is one; empty where all are others, and known.

    One that is known may lend later what it does not lend now.
    """
    if spec.funding is None or not spec.funding.sponsors:
        return ""
    if spec.tenant in spec.funding.sponsors:
        return (
            f"funding.sponsors: {spec.tenant} is the job's own tenant, whose envelopes are asked "
            "first: name others, or leave it out"
        )
    known = sorted(await connection.scalars(text("SELECT name FROM tenants")))
    unknown = [name for name in spec.funding.sponsors if name not in known]
    if not unknown:
        return ""
    found = list(await connection.scalars(text(_LENDS), {"tenant": spec.tenant}))
    lenders = f"No tenant lends to {spec.tenant}"
    if found:
        lenders = f"Tenants that lend to {spec.tenant}: {listed(found, _NAMED)}"
    close = difflib.get_close_matches(unknown[0], known, 1)
    meant = f"; did you mean {close[0]}?" if close else "."
    who = listed([shown(name) for name in unknown], _NAMED)
    are = "there is no tenant" if len(unknown) == 1 else "there are no tenants"
    return f"funding.sponsors: {are} {who}{meant} {lenders}"


_LENDS = """
    SELECT DISTINCT tenant FROM envelopes
     WHERE removed_at IS NULL AND lend_milli > 0 AND :tenant = ANY(lend_to)
       AND coalesce(ends_at > now(), true)
     ORDER BY tenant
"""
