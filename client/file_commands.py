"""Commands on files, or that only say where things are: `place`, `schema`, `ui`."""

import json
import webbrowser
from datetime import datetime
from enum import StrEnum
from types import UnionType
from typing import Annotated, Any, cast
from urllib.parse import quote, urlencode

import typer
from pydantic import BaseModel, TypeAdapter

from longshore.client.calls import call, known_job
from longshore.client.terminal import JSON, note, now, out, print_json, say, show
from longshore.client.web_ui import job_url, workflows_url
from longshore.models.addresses import url_of
from longshore.models.book_document import BookDocument
from longshore.models.budget_document import BudgetDocument, BudgetsDocument
from longshore.models.buying_document import BuyingDocument
from longshore.models.dag import DagSpec
from longshore.models.document import read_document
from longshore.models.errors import UnavailableError
from longshore.models.funding import Tenant
from longshore.models.job import JobSpec
from longshore.models.messages import JOB_WORKFLOW, NODE_WORKFLOW, POOL_WORKFLOW
from longshore.models.model_registry import ModelsDocument
from longshore.models.packing import PackingRule
from longshore.models.pool import PoolSpec
from longshore.models.preemption_document import PreemptionState
from longshore.models.schedule import ScheduleTimes
from longshore.models.service import ServiceFile
from longshore.models.serving import Runtime
from longshore.models.settings import Settings
from longshore.models.statefile import ClusterState
from longshore.models.visible import shown

_DRAFT = "https://json-schema.org/draft/2020-12/schema"


class Document(StrEnum):
    """Documents that have a schema."""

    JOB = "job"
    DAG = "dag"
    STATE = "state"
    BOOK = "book"
    BUYING = "buying"
    PREEMPTION = "preemption"
    SERVICES = "services"
    MODELS = "models"
    RUNTIME = "runtime"
    BUDGETS = "budgets"
    TENANT = "tenant"
    POOL = "pool"
    SCHEDULE = "schedule"


# Those of a pool, a tenant and a schedule are what their commands have flags for.
DOCUMENTS: dict[Document, tuple[type[BaseModel] | UnionType, str]] = {
    Document.JOB: (JobSpec, "Longshore job"),
    Document.DAG: (DagSpec, "Longshore DAG"),
    Document.STATE: (ClusterState, "Longshore cluster state"),
    Document.BOOK: (BookDocument, "Longshore order book"),
    Document.BUYING: (BuyingDocument, "Longshore queue and markets"),
    Document.PREEMPTION: (PreemptionState, "Longshore running jobs"),
    Document.SERVICES: (ServiceFile, "Longshore services"),
    Document.MODELS: (ModelsDocument, "Longshore models"),
    Document.RUNTIME: (Runtime, "Longshore runtime"),
    Document.BUDGETS: (BudgetDocument | BudgetsDocument, "Longshore budgets"),
    Document.TENANT: (Tenant, "Longshore tenant"),
    Document.POOL: (PoolSpec, "Longshore pool"),
    Document.SCHEDULE: (ScheduleTimes, "Longshore schedule's times"),
}


def register(app: typer.Typer) -> None:
    app.command(rich_help_panel="Files")(place)
    app.command(rich_help_panel="Files")(schema)
    app.command(rich_help_panel="Nodes and pools")(ui)


def place(
    job: Annotated[
        str | None, typer.Option(metavar="FILE", help="The job (YAML or JSON).")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL", help="With --live: place an engine of this model instead of a job."
        ),
    ] = None,
    state: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="State file with the nodes (YAML or JSON); needs no server."
        ),
    ] = None,
    live: Annotated[
        bool, typer.Option("--live", help="Use the current state and queue of a pool.")
    ] = False,
    pool: Annotated[
        str | None,
        typer.Option(metavar="POOL", help="With --live: the pool (default: the job's)."),
    ] = None,
    rules: Annotated[
        str | None,
        typer.Option(
            metavar="all|RULE,...",
            help="Compare with other packing rules, e.g. tight,fgd.",
        ),
    ] = None,
    as_json: JSON = False,
) -> None:
    """Decide for one job, or for an engine of a model: which node, which GPUs, and why not the
    others. Nothing is placed.

    On a state in a file, or with --live on a pool: what a cycle would do with it now.
    """
    if (job is None) is (model is None) or (model is not None and not live):
        raise typer.BadParameter("give --job FILE, or --live and --model MODEL")
    if live is (state is not None) or (pool is not None and not live):
        raise typer.BadParameter("give --state FILE, or --live and perhaps --pool POOL")
    compared = _rules(rules)
    if state is None or job is None:
        return _place_live(job, model or "", pool, compared, as_json)
    from longshore.client.place import by_rule, rules_of_gangs, run_place
    from longshore.client.place_view import render_gang_rules, render_place, render_rules

    cluster, request, decision = run_place(state, job, now())
    console, nodes = out(), cluster.packer_nodes()
    decided_at = cluster.now or now()
    _say_later(read_document(job, JobSpec).begins_at(decided_at), decided_at)
    others = by_rule(compared, request, nodes, cluster.policy, decided_at)
    of_gang = rules_of_gangs(request) if compared else ()
    of_gangs = by_rule(of_gang, request, nodes, cluster.policy, decided_at)
    if as_json:
        found = {"now": decided_at.isoformat(), "decision": decision}
        beside = {"by_rule": others} | ({"by_gang_packing": of_gangs} if of_gangs else {})
        return print_json({**found, **beside} if compared else found)
    plain = not console.is_terminal
    show(render_place(decision, request, decided_at, nodes, plain=plain))
    if others:
        show(render_rules(others, cluster.policy.rule, plain=plain))
    if of_gangs:
        show(render_gang_rules(of_gangs, cluster.policy.gang_packing, plain=plain))
    return None


def _say_later(begins_at: datetime | None, at: datetime) -> None:
    if begins_at is not None:
        from longshore.scheduling.forecast import says_later

        note(f"note: {says_later(begins_at, at)}")


def _rules(text: str | None) -> tuple[PackingRule, ...]:
    if text is None:
        return ()
    if text == "all":
        return tuple(PackingRule)
    try:
        return tuple(PackingRule(name.strip()) for name in text.split(","))
    except ValueError:
        known = ", ".join(rule.value for rule in PackingRule)
        raise typer.BadParameter(
            f"--rules takes all, or some of {known}, not {shown(text)}"
        ) from None


def _place_live(
    job: str | None, model: str, pool: str | None, rules: tuple[PackingRule, ...], as_json: bool
) -> None:
    from longshore.client.place import ModelName, place_live
    from longshore.client.place_view import render_foreseen
    from longshore.client.process import run

    asked = ModelName(model) if job is None else read_document(job, JobSpec)
    foreseen, nodes = run(place_live(asked, pool, now(), rules))
    _say_later(foreseen.begins_at, foreseen.at)
    if as_json:
        return print_json(foreseen)
    show(render_foreseen(foreseen, nodes, plain=not out().is_terminal))
    return None


def schema(
    document: Annotated[Document, typer.Argument(help="The kind of file.")] = Document.JOB,
) -> None:
    """Print the JSON Schema of a file, for editors. For `tenant`, `pool` and `schedule`: of the
    Python client's argument.

    longshore schema job > job.schema.json; then begin a job file with the line
    "# yaml-language-server: $schema=job.schema.json".
    """
    model, title = DOCUMENTS[document]
    described = TypeAdapter(cast(Any, model)).json_schema(mode="validation")
    print(json.dumps({"$schema": _DRAFT, **described, "title": title}, indent=2))


def ui(
    ref: Annotated[
        str | None, typer.Argument(metavar="JOB", help="A job's id or name.", show_default=False)
    ] = None,
    open_it: Annotated[bool, typer.Option("--open", help="Open the first in a browser.")] = False,
    as_json: JSON = False,
) -> None:
    """Print where the console is, and where the Temporal Web UI shows jobs, pools and nodes.

    The link to the console holds its token: who has it may look.
    """
    settings = Settings()
    base = workflows_url(settings)
    links: dict[str, str] = {}
    if ref is not None:
        job_id = call(lambda api: known_job(api, ref)).id
        links[f"job {job_id}"] = job_url(settings, job_id)
        links |= _console_link("its page", f"/jobs/{job_id}")
    links |= _console_link("console", "/")
    links |= {
        "all workflows": base,
        "jobs now": f"{base}?query={_query(JOB_WORKFLOW, 'Running')}",
        "failed jobs": f"{base}?query={_query(JOB_WORKFLOW, 'Failed')}",
        "pools": f"{base}?query={_query(POOL_WORKFLOW, 'Running')}",
        "nodes": f"{base}?query={_query(NODE_WORKFLOW, 'Running')}",
    }
    if as_json:
        print_json(links)
    else:
        width = max(len(label) for label in links)
        for label, link in links.items():
            say(f"{label:<{width}}  {link}")
    if open_it:
        webbrowser.open(next(iter(links.values())))


def _console_link(label: str, page: str) -> dict[str, str]:
    """Return the link that signs a browser in to a page of the console, where there is one."""
    settings = Settings()
    if settings.console_address is None:
        return {}
    try:
        token = settings.resolve_console_token()
    except UnavailableError:
        return {}  # nobody has started a console here yet
    return {label: f"{url_of(settings.console_address)}{page}?{urlencode({'token': token})}"}


def _query(workflow_type: str, status: str) -> str:
    return quote(f'WorkflowType="{workflow_type}" AND ExecutionStatus="{status}"', safe="=")
