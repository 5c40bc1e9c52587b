"""What a job brings along and gives back, in words."""

from longshore.models.addresses import without_secrets
from longshore.models.code import Code
from longshore.models.job import JobSpec
from longshore.models.text import count, listed
from longshore.models.units import format_bytes

_COMMIT = 12
"""Digits of a commit that are shown."""
_MOST = 5


def travels(spec: JobSpec) -> list[tuple[str, str]]:
    """Return what a job brings, reads and gives back, by names; only what it has."""
    sources = [
        f"{name} from {without_secrets(data.source)}"
        for name, data in spec.data.items()
        if data.source
    ]
    found = {
        "code": "" if spec.code is None else code_text(spec.code),
        "environment": "" if spec.environment is None else spec.environment.text,
        "reads": listed(sources, _MOST),
        "outputs": listed(spec.outputs, _MOST),
    }
    return [(name, text) for name, text in found.items() if text]


def code_text(code: Code) -> str:
    """Return ``41 files, 1.2MB, of commit 0123456789ab (v1.2) of https://...``."""
    text = f"{count(code.files, 'file')}, {format_bytes(code.bytes)}"
    if code.commit is not None:
        ref = f" ({code.ref})" if code.ref and not code.commit.startswith(code.ref) else ""
        where = f" of {code.git}" if code.git else ""
        changed = ", with changes" if code.changed else ""
        text += f", of commit {code.commit[:_COMMIT]}{ref}{where}{changed}"
    return text
