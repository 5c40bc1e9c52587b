"""The pages /services and /services/NAME as HTML."""

from collections.abc import Iterable, Sequence
from datetime import datetime
from urllib.parse import quote

from longshore.client.service_view import (
    known,
    leased,
    problems,
    says_what,
    since,
    state_words,
    takes,
)
from longshore.console.escaping import escape
from longshore.console.parts import cell, facts, number, table, when
from longshore.models.service import ReplicaView, RevisionView, ServiceView
from longshore.models.serving import EngineStage
from longshore.models.text import NONE, ago, format_duration, format_gpus

PATH = "/services"
_LOOKS = {EngineStage.READY: "well", EngineStage.LOADING: "begun", EngineStage.FAILED: "bad"}


def list_html(services: Iterable[ServiceView]) -> str:
    """Return the table of services; each leads to its page."""
    heads = ("Service", "Model", "Ready", "Revision", "Pool", "Tenant", "What")
    rows = (
        f"<tr>{cell(_link(each.name))}{cell(escape(known(each, each.spec.model)), 'Model')}"
        f"{number(f'{each.ready} of {each.spec.replicas}', 'Ready')}"
        f"{number(str(each.revision), 'Revision')}"
        f"{cell(escape(known(each, each.spec.pool)), 'Pool')}"
        f"{cell(escape(known(each, each.spec.tenant)), 'Tenant')}"
        f"{cell(escape(each.trouble or says_what(each)), folds=True)}</tr>"
        for each in services
    )
    return table("Services", heads, rows, numbers=("Ready", "Revision"))


def _link(name: str) -> str:
    return f'<a class="id" href="{PATH}/{quote(name)}">{escape(name)}</a>'


def engines_html(replicas: Sequence[ReplicaView], now: datetime, *, of_one: bool = False) -> str:
    """Return the table of engines with what each holds of its GPU, and what it really takes."""
    own = () if of_one else ("Service",)
    heads = (
        "Job", *own, "Revision", "State", "Node", "GPUs", "Holds and takes", "Holds", "Takes",
        "Endpoint", "Since",
    )  # fmt: skip
    most = max((max(each.leased_in_all, each.used) for each in replicas), default=1) or 1
    rows = (_engine(each, most, now, of_one=of_one) for each in replicas)
    return table("Engines", heads, rows, numbers=("Revision", "Holds", "Takes"))


def _engine(each: ReplicaView, most: int, now: datetime, *, of_one: bool) -> str:
    job = f'<a class="id" href="/jobs/{quote(each.job_id)}">{escape(each.job_id)}</a>'
    node = NONE
    if each.node_id:
        node = f'<a class="id" href="/nodes#{quote(each.node_id)}">{escape(each.node_id)}</a>'
    service = "" if of_one else cell(_link(each.service), "Service")
    gpus = format_gpus(each.gpu_indices) if each.gpu_indices else NONE
    endpoint = f'<span class="id">{escape(each.endpoint)}</span>' if each.endpoint else NONE
    return (
        f"<tr>{cell(job)}{service}{number(str(each.revision), 'Revision')}"
        f"{cell(_state(each), 'State')}{cell(node, 'Node')}{cell(escape(gpus), 'GPUs')}"
        f"{_bar(each, most)}{number(escape(leased(each)), 'Holds')}"
        f"{number(escape(takes(each)), 'Takes')}"
        f"{cell(endpoint, 'Endpoint', folds=True)}"
        f"{cell(escape(ago(since(each), now)), 'Since')}</tr>"
    )


def _state(each: ReplicaView) -> str:
    look = "ending" if each.stopping or each.stage is None else _LOOKS.get(each.stage, "ending")
    return f'<span class="state {look}">{escape(state_words(each))}</span>'


def _bar(each: ReplicaView, most: int) -> str:
    """Return a cell with a frame for what it holds, and a bar for what it takes of it."""
    if each.stage is None:
        return '<td class="bars"></td>'
    frame = f'<b style="width:{100 * each.leased_in_all / most:.2f}%"></b>'
    look = "bad" if each.over else "used"
    part = f'<span class="part {look}" style="width:{100 * each.used / most:.2f}%"></span>'
    title = escape(f"holds {leased(each)}, takes {takes(each)}")
    return f'<td class="bars"><span class="bar-of" title="{title}">{frame}{part}</span></td>'


def problems_html(replicas: Sequence[ReplicaView], now: datetime) -> str:
    """Return a paragraph for each engine that has failed, waits, or takes more than it holds."""
    told = problems(replicas, now)
    return "".join(f'<p class="reason lines">{escape(each)}</p>' for each in told)


def _in_lines(text: str) -> str:
    return f'<span class="lines">{escape(text)}</span>' if text else ""


def head_html(service: ServiceView) -> str:
    """Return a service in a few facts."""
    spec = service.spec
    pairs = [
        ("Model", escape(spec.model)),
        ("Ready", f"{service.ready} of {spec.replicas}"),
        ("Revision", str(service.revision)),
        ("Pool", escape(spec.pool)),
        ("Tenant", escape(spec.tenant)),
        ("Class", str(spec.priority)),
        ("Surge", str(spec.surge)),
        ("Unavailable", str(spec.unavailable)),
        ("Drain", format_duration(spec.drain)),
        ("Changed (UTC)", when(service.updated_at)),
    ]
    said = f'<p class="reason lines">{escape(service.message)}</p>' if service.message else ""
    return facts(pairs) + said


def revisions_html(revisions: Iterable[RevisionView], now: datetime) -> str:
    """Return the revisions, the newest first."""
    rows = (
        f"<tr>{cell(str(each.number))}{cell(escape(each.model), 'Model')}"
        f"{number(str(each.model_revision), 'Of the model')}"
        f"{cell(escape(each.runtime) or NONE, 'Runtime')}"
        f"{cell(f'{when(each.created_at)}', 'Made (UTC)')}"
        f"{cell(escape(ago(each.ready_at, now)) if each.ready_at else 'never', 'Ready')}"
        f"{cell(_in_lines(each.undone), folds=True)}</tr>"
        for each in revisions
    )
    heads = ("Revision", "Model", "Of the model", "Runtime", "Made (UTC)", "Ready", "Undone")
    return table("Revisions", heads, rows, numbers=("Of the model",))
