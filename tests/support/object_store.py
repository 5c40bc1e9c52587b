"""An object store for tests: a server of moto, which speaks S3, at a port of this machine.

`TEST_OBJECT_STORE=s3://bucket/tests` names another one instead; its credentials are then those of
the environment (`AWS_ACCESS_KEY_ID`, `AWS_ENDPOINT_URL`).
"""

import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from s3fs import S3FileSystem

from longshore.activities.storage import connect
from tests.support.local_stack import free_ports

VARIABLE = "TEST_OBJECT_STORE"
_BUCKET = "tests"
_PATIENCE = 60.0
"""Seconds: a start takes two on a quiet machine."""


@contextmanager
def object_store() -> Iterator[str]:
    """Yield the URL of a place in an object store that holds nothing; what comes there goes."""
    given = os.environ.get(VARIABLE, "")
    if given:
        with _place(given) as url:
            yield url
        return
    (port,) = free_ports(1)
    address = f"http://127.0.0.1:{port}"
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith(("AWS_", "FSSPEC_"))]:
            patch.delenv(name)
        patch.setenv("AWS_ACCESS_KEY_ID", "tests")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "tests")
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        patch.setenv("AWS_ENDPOINT_URL", address)
        patch.setenv("AWS_CONFIG_FILE", os.devnull)
        patch.setenv("AWS_SHARED_CREDENTIALS_FILE", os.devnull)
        patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        # Not a copy of the warm process: that has not imported moto.
        server = subprocess.Popen(
            [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            _make_bucket(f"{address}/{_BUCKET}", server)
            with _place(f"s3://{_BUCKET}") as url:
                yield url
        finally:
            server.terminate()
            server.wait(30)
            # fsspec keeps connected clients, and this one leads to a server that has gone.
            S3FileSystem.clear_instance_cache()


@contextmanager
def _place(above: str) -> Iterator[str]:
    url = f"{above.rstrip('/')}/{uuid.uuid4().hex}"
    S3FileSystem.clear_instance_cache()
    yield url
    fs, root = connect(url)
    if fs.exists(root):
        fs.rm(root, recursive=True)


def _make_bucket(url: str, server: subprocess.Popen[bytes]) -> None:
    """Make a bucket as soon as the server listens."""
    until = time.monotonic() + _PATIENCE
    while True:
        try:
            urllib.request.urlopen(urllib.request.Request(url, method="PUT"), timeout=10).close()
            return
        except urllib.error.URLError:
            if server.poll() is not None or time.monotonic() > until:
                raise
            time.sleep(0.05)
