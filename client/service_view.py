"""Services and their engines as tables."""

from collections.abc import Sequence
from datetime import datetime, timedelta

from rich.table import Table

from longshore.client.terminal import WIDE, a_table, width_of_ids
from longshore.models.differences import differences
from longshore.models.service import (
    ReplicaView,
    RevisionView,
    ServiceSpec,
    ServiceState,
    ServiceView,
)
from longshore.models.text import NONE, ago, count, format_gpus
from longshore.models.units import format_gb
from longshore.models.visible import visible

_TOLD_FOR = timedelta(hours=1)
"""For how long it is told that an engine left for a job."""
_ALL = 200
"""From so many columns on, a table of engines shows everything."""


def services_table(services: Sequence[ServiceView]) -> Table:
    """Return a row for each service."""
    table = a_table(
        ["service", "model", "ready", "revision", "pool", "tenant", "what"],
        right=("ready", "revision"), fold=("what",),
    )  # fmt: skip
    for each in services:
        table.add_row(
            each.name, known(each, each.spec.model), f"{each.ready}/{each.spec.replicas}",
            str(each.revision), known(each, each.spec.pool), known(each, each.spec.tenant),
            _first_line(says_what(each)),
        )  # fmt: skip
    return table


def known(service: ServiceView, value: str) -> str:
    """Return what its spec says, or a dash where that cannot be read."""
    return NONE if service.trouble else value


def says_what(service: ServiceView) -> str:
    """Return that it cannot be read, what it waits for, or its state."""
    if service.trouble and service.state is ServiceState.RUNNING:
        return "cannot be read"
    return service.message or service.state.in_words


def headline(service: ServiceView) -> str:
    """Return what it serves, with how many engines; of one that is over that it is."""
    spec = service.spec
    if service.state is ServiceState.REMOVED:
        return (
            f"{service.name} is removed: it had model {spec.model}, revision {service.revision}. "
            "`longshore serve FILE` starts it again."
        )
    return (
        f"{service.name}: model {spec.model}, {service.ready} of "
        f"{count(spec.replicas, 'replica')} ready, revision {service.revision}"
        f"{'' if service.state is ServiceState.RUNNING else ', ' + service.state.in_words}"
    )


def served_line(
    spec: ServiceSpec, revision: int, before: ServiceView | None, now: ServiceView | None
) -> str:
    """Return ``chat: revision 4, model pilot, of which revision 1 to 3, priority 5 to 7``: what a
    service is to be like, and what else that changes of one that was there `before`."""
    parts = [f"{spec.name}: revision {revision}, model {spec.model}"]
    if before is not None and not before.trouble:
        was = _revision(before, before.revision)
        is_ = _revision(now, revision) if now else None
        if was and is_ and was.model == is_.model and was.model_revision != is_.model_revision:
            parts.append(f"of which revision {was.model_revision} to {is_.model_revision}")
        if was and is_ and was.runtime and is_.runtime and was.runtime != is_.runtime:
            parts.append(f"runtime {was.runtime} to {is_.runtime}")
        if before.spec.model != spec.model:
            parts[0] += f" (before: {before.spec.model})"
        parts += differences(before.spec, spec, ("name", "model", "replicas"))
        if before.spec.replicas != spec.replicas:
            left = "" if revision == before.revision else " (an undo leaves that)"
            parts.append(f"replicas {before.spec.replicas} to {spec.replicas}{left}")
    return ", ".join(parts)


def why_left(service: ServiceView, number: int) -> str:
    """Return why a service is no longer at a revision; of a model that it then has as it was
    before, that the stored one is the one to mend."""
    left, now = _revision(service, number), _revision(service, service.revision)
    if left is None or not left.undone:
        return f"it is at revision {service.revision} now"
    if now is None or now.model != left.model or now.model_revision >= left.model_revision:
        return left.undone
    return (
        f"{left.undone}\nThe model {left.model} stays stored as its revision "
        f"{left.model_revision}, and the next change of the service has that: mend it first, with "
        "`longshore models add` or in `models` of the file."
    )


def _revision(service: ServiceView, number: int) -> RevisionView | None:
    return next((each for each in service.revisions or () if each.number == number), None)


def revisions_table(revisions: Sequence[RevisionView], now: datetime, width: int) -> Table:
    """Return a row for each revision; a narrow table leaves out the revision and the runtime of
    the model."""
    headings = ["revision", "model", "made", "ready first", "undone"]
    if width >= WIDE:
        headings[2:2] = ["revision of the model", "runtime"]
    table = a_table(
        headings, right=("revision", "revision of the model"), fold=("undone",),
        widest={"model": width // 5, "runtime": width // 8},
    )  # fmt: skip
    for each in revisions:
        cells = {
            "revision": str(each.number), "model": each.model,
            "revision of the model": str(each.model_revision), "runtime": each.runtime or NONE,
            "made": ago(each.created_at, now),
            "ready first": ago(each.ready_at, now) if each.ready_at else "never",
            "undone": _first_line(each.undone) or NONE,
        }  # fmt: skip
        table.add_row(*(cells[heading] for heading in headings))
    return table


def _first_line(text: str) -> str:
    return text.partition("\n")[0]


def undone_in_full(revisions: Sequence[RevisionView]) -> list[str]:
    """Return why the newest was undone of which the table has the first line alone."""
    return [
        f"revision {each.number} was undone: {visible(each.undone)}"
        for each in revisions
        if "\n" in each.undone
    ][:1]


def replicas_table(
    replicas: Sequence[ReplicaView], now: datetime, width: int, *, of_one: bool = False
) -> Table:
    """Return a row for each engine; of one service without its name.

    A narrow table leaves out what the id of the job or the endpoint says mostly, and folds what is
    longer than usual: the endpoint is what people look for.
    """
    headings = ["job", "state", "leased", "takes", "endpoint"]
    if width >= WIDE:
        headings[1:1] = ["revision"]
        headings[3:3] = ["node", "GPUs"]
        headings.append("since")
    if width >= _ALL and not of_one:
        headings[1:1] = ["service", "model"]
    widest = {"job": width_of_ids(width) if width < WIDE else width // 4}
    widest |= dict.fromkeys(("service", "model", "node"), max(width // 12, 15))
    if width < _ALL:
        widest |= {"state": 11, "leased": 10, "takes": 6}
    table = a_table(
        headings, right=("revision", "leased", "takes"), fold=("endpoint",), widest=widest
    )
    for each in replicas:
        cells = {
            "job": each.job_id, "service": each.service, "model": each.model,
            "revision": str(each.revision), "state": state_words(each),
            "node": each.node_id or NONE,
            "GPUs": format_gpus(each.gpu_indices) if each.gpu_indices else NONE,
            "leased": leased(each), "takes": takes(each), "endpoint": each.endpoint or NONE,
            "since": ago(since(each), now),
        }  # fmt: skip
        table.add_row(*(cells[heading] for heading in headings))
    return table


def state_words(replica: ReplicaView) -> str:
    """Return ``ready``, ``ready, idle``, ``loading``, ``stopping``, or ``waits``."""
    if replica.stopping:
        return "stopping"
    if replica.stage is None:
        failed = f" ({replica.failures} failed)" if replica.failed else ""
        return f"waits{failed}"
    if replica.idle_since is not None:
        return "ready, idle"
    return replica.stage.value


def since(replica: ReplicaView) -> datetime:
    """Return since when it is ready, or has left its GPUs, or is there at all."""
    left = replica.left.at if replica.left else replica.created_at
    return replica.ready_at or max(left, replica.created_at)


def leased(replica: ReplicaView) -> str:
    """Return ``757MB``, or ``2 x 50GB`` of an engine on two GPUs; a dash while it has none. Where
    it holds more than its model was reckoned with, the estimate is beside it."""
    if replica.stage is None:
        return NONE
    gpus = len(replica.gpu_indices)
    holds = f"{f'{gpus} x ' if gpus > 1 else ''}{format_gb(replica.leased / 1000)}"
    if replica.estimated in (0, replica.leased):
        return holds
    return f"{holds} (estimated {format_gb(replica.estimated / 1000)})"


def takes(replica: ReplicaView) -> str:
    """Return what it really takes of GPU memory, marked where that is more than it has."""
    if not replica.used:
        return NONE
    return f"{format_gb(replica.used / 1000)}{' (over)' if replica.over else ''}"


def new_reasons(replicas: Sequence[ReplicaView], told: set[str]) -> list[str]:
    """Return why engines wait or failed last, each reason once and not those that are `told`, to
    which it adds them; times and numbers of a reason change while it is the same."""
    found: list[str] = []
    for each in replicas:
        alike = "".join(letter for letter in each.message if not letter.isdigit())
        if alike and not each.endpoint and not each.stopping and alike not in told:
            told.add(alike)
            found.append(f"{each.job_id}: {visible(each.message)}")
    return found


def problems(replicas: Sequence[ReplicaView], now: datetime) -> list[str]:
    """Return a line for each engine that has failed, waits, takes more than it has, or has left
    for a job."""
    found: list[str] = []
    for each in replicas:
        if each.over:
            found.append(
                f"{each.job_id} takes {format_gb(each.used / 1000)} of GPU memory and holds "
                f"{leased(each)}: other jobs there may run out of memory. Give the model a "
                "larger `memory`."
            )
        if each.left and now - each.left.at < _TOLD_FOR:
            found.append(
                f"{each.job_id} left its GPU for {each.left.for_job} {ago(each.left.at, now)}: "
                f"{visible(each.left.why)}"
            )
        if each.message and not each.endpoint:
            found.append(f"{each.job_id}: {visible(each.message)}")
    return found
