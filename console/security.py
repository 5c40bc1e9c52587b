"""Who may look: programs with a bearer token, browsers with a cookie that the token bought.

`Guard` stands before everything but /healthz and the login form. A browser comes in through a link
with ``?token=`` or through the form; what it gets is a cookie that expires by itself, holds no
token, and is worth nothing once the token is another one.
"""

import hashlib
import hmac
import logging
import os
import secrets
import time
from pathlib import Path
from urllib.parse import parse_qs, parse_qsl, urlencode

from starlette.datastructures import MutableHeaders
from starlette.requests import HTTPConnection, Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from longshore.console.problems import problem
from longshore.console.small_pages import entering_page, login_page
from longshore.models.errors import UnavailableError
from longshore.models.settings import Settings

HEALTH = "/healthz"
LOGIN = "/login"
LOGOUT = "/logout"
SESSION_LASTS = 30 * 24 * 3600
"""Seconds until a browser has to come in again."""
_SAFE = {
    "Cache-Control": "no-store",
    # The pages are put together in the browser, which takes eval and inline styles.
    "Content-Security-Policy": "default-src 'self' 'unsafe-inline' 'unsafe-eval' data:; "
    "frame-ancestors 'none'; form-action 'self'; base-uri 'self'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
_OPEN = (HEALTH, LOGIN, "/favicon.ico")
_log = logging.getLogger(__name__)
_FORM_LIMIT = 4096
_POLICY_VIOLATION = 1008


def ensure_token(settings: Settings) -> str:
    """Return the console's token; make the file `console-token` where neither is set nor stored.

    Raises UnavailableError when the state folder cannot be written.
    """
    if settings.console_token is None:
        _make(settings.state_dir / "console-token")
    return settings.resolve_console_token()


class Guard:
    """Lets through who has the token or a session that it opened, and nobody else."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app = app
        self._token = token
        # Two consoles on one machine differ in their port alone, which cookies do not tell apart.
        self.cookie = "longshore_" + hashlib.sha256(b"name" + token.encode()).hexdigest()[:8]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            return await self._app(scope, receive, send)
        if scope["type"] == "websocket":
            if self._may(HTTPConnection(scope)):
                return await self._app(scope, receive, send)
            return await send({"type": "websocket.close", "code": _POLICY_VIOLATION})
        request = Request(scope, receive)
        answer = await self._answer(request)
        return await (answer or self._app)(scope, receive, send)

    async def _answer(self, request: Request) -> Response | None:
        """Return what to say to a request that does not go through, else None."""
        path = request.url.path
        if path == LOGIN:
            return await self._log_in(request)
        if path == LOGOUT and request.method == "POST":
            return self._log_out()
        if path in _OPEN:
            return None
        by_link = "token" in request.query_params and "authorization" not in request.headers
        if request.method == "GET" and by_link:
            return self._enter(request, request.query_params["token"], _without_token(request))
        if self._may(request):
            return None
        if wants_page(request.scope):
            target = urlencode({"next": _without_token(request)})
            return RedirectResponse(f"{LOGIN}?{target}", status_code=303)
        return problem(
            401,
            "unauthorized",
            "This needs the console's token: send it as `Authorization: Bearer TOKEN`. It is in "
            "the file console-token of the state folder.",
            headers={"WWW-Authenticate": 'Bearer realm="longshore"'},
        )

    def _may(self, request: HTTPConnection) -> bool:
        if "authorization" in request.headers:
            scheme, _, value = request.headers["authorization"].partition(" ")
            return scheme.lower() == "bearer" and self._is_token(value.strip())
        return self._is_session(request.cookies.get(self.cookie, ""))

    async def _log_in(self, request: Request) -> Response:
        target = local_path(request.query_params.get("next", "/"))
        if request.method in ("GET", "HEAD"):
            return HTMLResponse(login_page(target))
        if request.method != "POST":
            return problem(405, "method_not_allowed", "Use GET or POST.", {"Allow": "GET, POST"})
        form = parse_qs(await _small_body(request))
        return self._enter(request, form.get("token", [""])[0].strip(), target)

    def _enter(self, request: Request, token: str, target: str) -> Response:
        if not self._is_token(token):
            return HTMLResponse(login_page(target, refused=True), status_code=401)
        # Not a redirect: coming from another site, the browser would not send the new cookie.
        answer = HTMLResponse(entering_page(target))
        answer.set_cookie(
            self.cookie,
            self._session_until(int(time.time()) + SESSION_LASTS),
            max_age=SESSION_LASTS,
            httponly=True,
            samesite="strict",
            secure=request.url.scheme == "https",
        )
        return answer

    def _log_out(self) -> Response:
        answer = RedirectResponse(LOGIN, status_code=303)
        answer.delete_cookie(self.cookie, httponly=True, samesite="strict")
        return answer

    def _is_token(self, value: str) -> bool:
        return hmac.compare_digest(value.encode(), self._token.encode())

    def _is_session(self, value: str) -> bool:
        until = value.partition(".")[0]
        if not (until.isascii() and until.isdigit() and len(until) < 12):
            return False
        right = hmac.compare_digest(value.encode(), self._session_until(int(until)).encode())
        return right and int(until) > time.time()

    def _session_until(self, until: int) -> str:
        proof = hmac.new(self._token.encode(), f"session {until}".encode(), hashlib.sha256)
        return f"{until}.{proof.hexdigest()}"


class SafeHeaders:
    """Tells browsers to load nothing from elsewhere, and to keep nothing of what was shown."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _SAFE.items():
                    headers.setdefault(name, value)
                _log.debug("%s %s: %s", scope["method"], scope["path"], message["status"])
            await send(message)

        return await self._app(scope, receive, with_headers)


def wants_page(scope: Scope) -> bool:
    """Return whether a browser asks for a page: programs get JSON at the same address."""
    accept = HTTPConnection(scope).headers.get("accept", "")
    return scope.get("method") in ("GET", "HEAD") and "text/html" in accept


def local_path(target: str) -> str:
    """Return a path of this console, `/` for anything that leads elsewhere."""
    fine = target.startswith("/") and not target.startswith(("//", "/\\")) and target.isprintable()
    return target if fine else "/"


def new_token() -> str:
    return secrets.token_urlsafe(32)


def _make(path: Path) -> None:
    """Write a new token for this user's eyes alone, unless the file is there."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        draft = path.with_name(f".{path.name}.{os.getpid()}")
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            file.write(new_token() + "\n")
        try:
            os.link(draft, path)  # unlike a rename, it leaves what somebody else just made
        except FileExistsError:
            return
        finally:
            draft.unlink()
    except OSError as error:
        raise UnavailableError(
            f"cannot write {path} ({error.strerror}). Choose another state folder with "
            "LONGSHORE_STATE_DIR, or set LONGSHORE_CONSOLE_TOKEN."
        ) from None


def _without_token(request: Request) -> str:
    pairs = [(k, v) for k, v in parse_qsl(request.url.query) if k != "token"]
    return local_path(request.url.path + (f"?{urlencode(pairs)}" if pairs else ""))


async def _small_body(request: Request) -> str:
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > _FORM_LIMIT:
            return ""
    return body.decode(errors="replace")
