"""Where the Temporal Web UI shows a workflow."""

import os

from longshore.models.errors import UnavailableError
from longshore.models.messages import job_workflow_id
from longshore.models.settings import Settings


def workflows_url(settings: Settings) -> str:
    """Return where the Web UI lists workflows. Raises UnavailableError where nobody says so."""
    return f"{_address(settings)}/namespaces/{_namespace()}/workflows"


def job_url(settings: Settings, job_id: str) -> str:
    """Return where it shows the workflow of a job. Raises UnavailableError as above."""
    return f"{workflows_url(settings)}/{job_workflow_id(job_id)}"


def _address(settings: Settings) -> str:
    if settings.temporal_ui:
        return settings.temporal_ui.rstrip("/")
    address = os.environ.get("TEMPORAL_ADDRESS")
    found = "" if address and not _is_own(address, settings) else settings.stack().temporal_ui
    if not found:
        raise UnavailableError(
            f"where the Web UI of the Temporal server {address or 'in use'} is, is not known: "
            "set LONGSHORE_TEMPORAL_UI, for example to https://temporal.example.com"
        )
    return found.rstrip("/")


def _is_own(address: str, settings: Settings) -> bool:
    """Return whether that is the server of the local stack, of which other SDKs are told so."""
    try:
        return settings.stack().temporal_address == address
    except UnavailableError:
        return False


def _namespace() -> str:
    from temporalio.envconfig import ClientConfig

    return ClientConfig.load_client_connect_config().get("namespace") or "default"
