"""A collector of traces for tests: takes spans by OTLP over HTTP and keeps them."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


class Span(NamedTuple):
    service: str
    name: str
    trace: str
    span: str
    parent: str


class Collector:
    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.paths: set[str] = set()
        self.url = ""

    def take(self, path: str, body: bytes) -> None:
        self.paths.add(path)
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            names = {each.key: each.value.string_value for each in resource.resource.attributes}
            for scope in resource.scope_spans:
                self.spans += [
                    Span(
                        names["service.name"], span.name, span.trace_id.hex(), span.span_id.hex(),
                        span.parent_span_id.hex(),
                    )
                    for span in scope.spans
                ]  # fmt: skip


@contextmanager
def collecting() -> Iterator[Collector]:
    """Run a collector on a free port until the end of the block."""
    collector = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                import gzip

                body = gzip.decompress(body)
            collector.take(self.path, body)
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    collector.url = f"http://127.0.0.1:{server.server_address[1]}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield collector
    finally:
        server.shutdown()
        server.server_close()
