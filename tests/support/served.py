"""A data set behind HTTP on this machine, which holds back or refuses what a test wants."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


class Gate(SimpleHTTPRequestHandler):
    """Serves a folder, and holds back or refuses what it is told to."""

    def __init__(self, *args: object, served: "Served") -> None:
        self._served = served
        super().__init__(*args, directory=str(served.folder))  # pyright: ignore[reportArgumentType]

    def do_GET(self) -> None:
        name = self.path.rpartition("/")[2]
        self._served.asked.append(name)
        if name in self._served.refused:
            self.send_error(503)
            return
        if name in self._served.held_back:
            self._served.open.wait(60)
        super().do_GET()

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


class Served:
    """A folder behind HTTP."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.url = ""
        self.asked: list[str] = []
        self.refused: set[str] = set()
        self.held_back: set[str] = set()
        self.open = threading.Event()


@contextmanager
def serving(folder: Path) -> Iterator[Served]:
    served = Served(folder)
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Gate, served=served))
    served.url = f"http://127.0.0.1:{server.server_address[1]}/"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield served
    finally:
        served.open.set()
        server.shutdown()
        server.server_close()
        thread.join()
