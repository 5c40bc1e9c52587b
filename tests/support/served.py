"""A data set behind HTTP on this machine, which holds back or refuses what a test wants."""

import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any


class Gate(SimpleHTTPRequestHandler):
    """Serves a folder, and holds back or refuses what it is told to."""

    def __init__(self, *args: object, served: "Served") -> None:
        self._served = served
        super().__init__(*args, directory=str(served.folder))  # pyright: ignore[reportArgumentType]

    def do_GET(self) -> None:
        if self._moves_on() or self._answers():
            return
        name = self.path.rpartition("/")[2]
        self._served.asked.append(name)
        if name in self._served.refused | self._served.away:
            self.send_error(503)
            return
        if name in self._served.held_back:
            self._served.open.wait(60)
        if self._served.breaks_off.get(name, 0) > 0:
            self._served.breaks_off[name] -= 1
            self._break_off(self._served.folder / name)
            return
        super().do_GET()

    def do_HEAD(self) -> None:
        if self._moves_on() or self._answers():
            return
        if self.path.rpartition("/")[2] in self._served.away:
            self.send_error(503)
            return
        super().do_HEAD()

    def _moves_on(self) -> bool:
        """Send who asks to another place, where there is one for this path."""
        if where := self._served.moved.get(self.path):
            self.send_response(302)
            self.send_header("Location", where)
            self.send_header("Content-Length", "0")
            self.end_headers()
        return where is not None

    def _answers(self) -> bool:
        """Answer as is told for this path, where something is."""
        answer = self._served.answers.get(self.path)
        if answer == "":
            self._served.open.wait(60)
            self.close_connection = True
        elif isinstance(answer, int):
            self.send_error(answer)
        elif answer is not None:
            self.send_response(200)
            self.send_header("Content-Type", self._served.kind)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(answer.encode())
        return answer is not None

    def _break_off(self, file: Path) -> None:
        """Send half of a file, of which the whole is promised."""
        content = file.read_bytes()
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content[: len(content) // 2])
        self.wfile.flush()
        self.close_connection = True

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


class Served:
    """A folder behind HTTP."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.url = ""
        self.asked: list[str] = []
        self.refused: set[str] = set()
        self.away: set[str] = set()
        """What is refused also to those who only ask how long it is."""
        self.breaks_off: dict[str, int] = {}
        """How often a file ends in its middle."""
        self.moved: dict[str, str] = {}
        """Where paths lead that are redirected."""
        self.answers: dict[str, int | str] = {}
        """Of paths: an error, or what is there of this `kind`; "" for nothing before the end."""
        self.kind = "text/html"
        self.held_back: set[str] = set()
        self.open = threading.Event()


class _Quiet(ThreadingHTTPServer):
    """Says nothing of a client that has read enough: what a command under test writes is held."""

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


class _QuietOfIPv6(_Quiet):
    address_family = socket.AF_INET6


@contextmanager
def serving(folder: Path, host: str = "127.0.0.1") -> Iterator[Served]:
    served = Served(folder)
    kind = _QuietOfIPv6 if ":" in host else _Quiet
    server = kind((host, 0), partial(Gate, served=served))
    shown = f"[{host}]" if ":" in host else host
    served.url = f"http://{shown}:{server.server_address[1]}/"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield served
    finally:
        served.open.set()
        server.shutdown()
        server.server_close()
        thread.join()
