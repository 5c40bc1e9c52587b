"""What `longshore serve --dry-run` says, in lines."""

from longshore.client.model_view import change_line
from longshore.client.terminal import note, note_simulated, say, warn
from longshore.models.serve_plan import ServePreview, ServicePreview
from longshore.models.text import count
from longshore.models.units import format_gb


def say_preview(found: ServePreview) -> None:
    """Say what would become of models and services."""
    for each in found.warnings:
        warn(each)
    replicas = [each for service in found.services for each in service.replicas]
    note_simulated(any(each.simulated and not each.simulated_market for each in replicas))
    for change in found.models:
        say(change_line("model", change, dry_run=True))
    for service in found.services:
        for each in service.warnings:
            warn(f"service {service.service}: {each}")
        for line in lines_of(service):
            say(line)
    note("Nothing is changed: it was a dry run.")


def lines_of(service: ServicePreview) -> list[str]:
    """Return what would become of a service."""
    gpus = "a GPU" if service.gpus == 1 else f"each of {service.gpus} GPUs"
    held = format_gb(service.memory / 1000)
    lines = [
        f"would: {service.says}",
        f"  an engine holds {held} of {gpus}, {service.memory_from}",
        *(f"  a replica {each.told}" for each in service.replicas),
    ]
    if more := service.start - len(service.replicas):
        lines.append(f"  {count(more, 'more replica')} would be started, and not looked at")
    lines += [f"  {each.job_id} would be stopped: {each.why}" for each in service.stop]
    if not (service.start or service.stop):
        lines.append("  no replica would be started or stopped")
    return lines
