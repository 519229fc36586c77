"""Dagster's web server, restricted to its own pages: `python -m agent_pipeline.cli.webserver`.

Dagster's server accepts a mutation from any page that a browser has open: by GET, as a form or as
plain text, from every origin and under every host name. Such a page could promote a model. `dev`,
`service webserver` and the container's `dagster-webserver` start this server instead. The options
are Dagster's own.
"""

import ipaddress
import socket
from collections.abc import Collection
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from agent_pipeline._compat.dagster_webserver import run_webserver
from agent_pipeline.cli.instance import name_postgres_driver
from agent_pipeline.config.settings import load_settings
from agent_pipeline.errors import PipelineError

READING = ("GET", "HEAD", "OPTIONS")
"""HTTP methods of requests that do not have a body."""


class OwnPagesOnly:
    """A middleware that refuses requests that do not come from the UI's own pages.

    Attributes:
        hosts: Names of the UI, in addition to those of this machine.
    """

    def __init__(self, app: ASGIApp, hosts: Collection[str] = ()) -> None:
        self._app = app
        self._hosts = frozenset(filter(None, map(_host_name, hosts)))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        if reason := self._refusal(scope):
            if scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1008, "reason": reason})
            else:
                await PlainTextResponse(f"{reason}\n", status_code=403)(scope, receive, send)
            return

        async def send_unframed(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)["X-Frame-Options"] = "SAMEORIGIN"
            await send(message)

        await self._app(scope, receive, send_unframed)

    def _refusal(self, scope: Scope) -> str:
        """Return the reason for refusing a request, or an empty text if it is allowed."""
        headers = Headers(scope=scope)
        host, origin = headers.get("host", ""), headers.get("origin")
        name = _host_name(host)
        if not (_is_own_name(name) or name in self._hosts):
            return (
                f"{host!r} is not an accepted name of this server: add it to the setting ui_hosts."
            )
        is_same = origin is not None and urlsplit(origin).netloc.lower() == host.lower()
        if origin is not None and not is_same and _host_name(origin) not in self._hosts:
            return (
                f"The page {origin!r} may not use this server: add its host to the setting "
                f"ui_hosts."
            )
        if scope["type"] == "websocket":
            return ""
        is_reading = scope["method"] in READING
        from_elsewhere = headers.get("sec-fetch-site") in ("cross-site", "same-site")
        is_link = (
            is_reading
            and headers.get("sec-fetch-mode") == "navigate"
            and headers.get("sec-fetch-dest") == "document"
        )
        if from_elsewhere and origin is None and not is_link:
            return "Pages of other hosts may not load anything from this server."
        if is_reading:
            asks = scope["path"].rstrip("/").endswith("/graphql") and scope.get("query_string")
            return "GraphQL queries must be sent by POST." if asks else ""
        media_type = headers.get("content-type", "").partition(";")[0].strip().lower()
        return (
            "" if media_type == "application/json" else "The content type must be application/json."
        )


def _host_name(address: str) -> str:
    """Return the host name in lower case, from a URL, from `host:port`, or from a bare name.

    The text is empty if there is no host.
    """
    try:
        return urlsplit(address if "://" in address else f"//{address}").hostname or ""
    except ValueError:
        return ""


def _is_own_name(name: str) -> bool:
    """Return whether a host name always means this machine.

    An address in numbers does, because nobody can give a page such a name.
    """
    if name in ("localhost", socket.gethostname().lower()):
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def main() -> None:
    """Run Dagster's web server behind `OwnPagesOnly`."""
    try:
        hosts = load_settings().ui_hosts
    except PipelineError:  # the UI shows what is wrong with the settings
        hosts = []
    name_postgres_driver()
    run_webserver(lambda app: OwnPagesOnly(app, hosts))


if __name__ == "__main__":
    main()
