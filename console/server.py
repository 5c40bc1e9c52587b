"""The process that serves the console: one address, one token, ended by SIGTERM or Ctrl-C."""

import errno
import logging
import signal
import socket
import sys
from collections.abc import Callable
from urllib.parse import urlencode

import uvicorn

from longshore.console.app import build
from longshore.console.connections import BoundedProtocol
from longshore.console.security import ensure_token
from longshore.models.addresses import host_and_port, url_of
from longshore.models.errors import StackError
from longshore.models.settings import Settings

_GRACE = 3
"""Seconds that open connections get at the end."""
_BACKLOG = 128


def serve(settings: Settings, address: str, ready: Callable[[str], object]) -> None:
    """Serve pages and REST API at `address` until SIGTERM or Ctrl-C.

    `ready` gets a link that signs a browser in, as soon as connections are taken. Raises
    StackError when nothing can listen there, UnavailableError when there is no token and none can
    be stored.
    """
    token = ensure_token(settings)
    with _listening(address) as listener:
        _log_to_stderr(settings)
        app = build(settings, token)
        ready(f"{url_of(address)}/?{urlencode({'token': token})}")
        config = uvicorn.Config(
            app,
            http=BoundedProtocol,
            log_config=None,
            access_log=False,  # it would write the token of a link
            server_header=False,
            timeout_graceful_shutdown=_GRACE,
        )
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: None)  # uvicorn ends in order, then raises it again
        uvicorn.Server(config).run(sockets=[listener])


def _listening(address: str) -> socket.socket:
    host, port = host_and_port(address)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        busy = error.errno == errno.EADDRINUSE
        why = f"port {port} is in use" if busy else error.strerror
        raise StackError(
            f"the console cannot listen at {address}: {why}. End what listens there, or choose "
            "another address with --address or LONGSHORE_CONSOLE_ADDRESS (`off` for none)."
        ) from None
    return listener


def _log_to_stderr(settings: Settings) -> None:
    logging.basicConfig(
        level=settings.log_level,
        stream=sys.stderr,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        force=True,
    )
    # The first three write a line for each look at a market, uvicorn each socket with its query.
    for noisy in (
        "longshore.activities.providers",
        "httpx",
        "httpcore",
        "uvicorn",
        "engineio",
        "socketio",
    ):
        logging.getLogger(noisy).setLevel(logging.WARNING)
