"""The console as one ASGI application: REST API, pages, and the guard before both."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib import metadata
from typing import Any

from fastapi import FastAPI
from fastapi.responses import HTMLResponse, RedirectResponse
from nicegui import core, ui
from starlette.requests import Request
from starlette.routing import Match, Mount
from starlette.types import Scope

from longshore.console import (
    api,
    blocks_page,
    bought_api,
    budgets_page,
    costs_page,
    cycles_page,
    dags_page,
    fleet_api,
    funding_api,
    jobs_page,
    nodes_page,
    orderbook_page,
    problems,
    purchases_page,
    queue_page,
    schedules_page,
    services_api,
    services_page,
)
from longshore.console.api_docs import docs_page
from longshore.console.bought import Bought
from longshore.console.fleet import Fleet
from longshore.console.market_history import Past
from longshore.console.markets import Markets
from longshore.console.quotes import Quotes
from longshore.console.security import HEALTH, Guard, SafeHeaders, wants_page
from longshore.console.small_pages import missing_page
from longshore.models.settings import Settings

_ABOUT = (
    "Nodes and jobs; prices of GPU time at the compute markets that Longshore is set up for, and "
    "what was bought there. Every request needs the console's token as "
    "`Authorization: Bearer TOKEN`."
)


def build(settings: Settings, token: str) -> FastAPI:
    """Return the application. One a process: its pages belong to NiceGUI's only application."""
    markets, past = Markets(settings), Past(settings)
    bought, fleet = Bought(settings), Fleet(settings)
    quotes = Quotes(markets.providers)
    simulated = settings.market != "real"

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        await markets.close()
        await past.close()
        await bought.close()
        await fleet.close()

    app = FastAPI(
        title="Longshore",
        version=metadata.version("longshore"),
        description=_ABOUT,
        docs_url=None,  # FastAPI's own page loads its parts from the internet
        redoc_url=None,
        lifespan=lifespan,
    )
    problems.install(app)
    app.include_router(api.router(quotes, past, simulated=simulated))
    app.include_router(bought_api.router(bought))
    app.include_router(fleet_api.router(fleet))
    app.include_router(funding_api.router(fleet))
    app.include_router(services_api.router(fleet))
    _add_small_routes(app)
    orderbook_page.add(quotes, past, simulated=simulated)
    for page in (purchases_page, blocks_page, costs_page):
        page.add(bought, simulated=simulated)
    nodes_page.add(fleet)
    jobs_page.add(fleet)
    queue_page.add(fleet)
    dags_page.add(fleet)
    schedules_page.add(fleet)
    services_page.add(fleet)
    cycles_page.add(fleet)
    budgets_page.add(fleet)
    _add_pages(app)
    app.add_middleware(Guard, token=token)
    app.add_middleware(SafeHeaders)
    _describe_token(app)
    return app


class _Pages(Mount):
    """NiceGUI's application, for browsers alone: a program at a wrong address gets JSON."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        of_pages = scope["path"].startswith("/_nicegui") or scope["path"] == "/favicon.ico"
        if scope["type"] == "http" and not of_pages and not wants_page(scope):
            return Match.NONE, {}
        return super().matches(scope)


def _add_small_routes(app: FastAPI) -> None:
    @app.get(HEALTH, include_in_schema=False)
    async def healthz() -> dict[str, bool]:
        return {"ok": True}

    @app.get("/", include_in_schema=False)
    async def front() -> RedirectResponse:
        return RedirectResponse(orderbook_page.PATH)

    @app.get("/docs", include_in_schema=False)
    async def docs() -> HTMLResponse:
        return HTMLResponse(docs_page(app.openapi()))


def _add_pages(app: FastAPI) -> None:
    ui.run_with(
        app,
        title="Longshore",
        favicon="⚓",
        dark=None,
        language="en-US",
        tailwind=False,
        show_welcome_message=False,
        reconnect_timeout=10.0,
    )
    app.router.routes[-1] = _Pages("/", core.app)
    core.app.add_exception_handler(404, _no_such_page)


async def _no_such_page(_request: Request, _error: Exception) -> HTMLResponse:
    return HTMLResponse(missing_page(), status_code=404)


def _describe_token(app: FastAPI) -> None:
    """Have the OpenAPI description say that every operation needs the token."""
    plain = app.openapi

    def described() -> dict[str, Any]:
        schema = plain()
        schemes = schema.setdefault("components", {}).setdefault("securitySchemes", {})
        schemes["token"] = {"type": "http", "scheme": "bearer"}
        schema["security"] = [{"token": []}]
        return schema

    app.openapi = described
