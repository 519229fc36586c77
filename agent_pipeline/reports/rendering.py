"""Rendering of HTML pages: the templates, the style sheet, the script and the security policy.

A page is either served (`agent-pipeline pages`), or a single file that loads nothing. All text on a
page was written by models, users and tools. The templates escape it. Control characters that would
hide or reverse text are made visible. No page may run a script that a session contains: the
policy of a served page allows only the script of this package, and the policy of a single file
allows only that script, by its hash.

The content of the pages does not belong here.
"""

import base64
import hashlib
import json
import re
from collections.abc import Collection, Mapping
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Protocol
from urllib.parse import urlencode

from agent_pipeline.keys import PartitionKey

if TYPE_CHECKING:
    from jinja2 import Environment

SERVED_POLICY = (
    "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
"""The content security policy of a served page."""

STORED_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; sandbox allow-scripts"
)
"""The additional policy under which a stored single file is served. The file has a stricter policy
about scripts, and the sandbox keeps it away from the served pages.
"""

STATIC_FILES = {"pages.css": "text/css", "pages.js": "text/javascript"}
"""The files that served pages load, with their media types."""

_HIDING = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b\u2028-\u202e\u2060-\u2069\ufeff"
    "\ufff9-\ufffb\ud800-\udfff\U000e0000-\U000e007f]"
)
"""Characters that a page does not show, or that change the order of other characters."""

STORED_MARK = '<html lang="en" data-served="">'
"""The beginning of a single file. The server changes it, and the script then shows the links."""


class Links(Protocol):
    """The addresses of the pages of one agent."""

    def has(self, name: str) -> bool:
        """Return whether there is a page of this name."""

    def page(self, name: str, **query: str) -> str:
        """Return the address of a page, such as `sessions`."""

    def session(self, session_id: str, message: int | None = None) -> str:
        """Return the address of a session, or of one of its messages (from 1)."""


class ServedLinks:
    """The addresses of the pages of one agent on the server."""

    def __init__(self, key: PartitionKey) -> None:
        self.key = key

    def has(self, name: str) -> bool:
        """Return true, because the server has every page."""
        return True

    def page(self, name: str, **query: str) -> str:
        """Return the address of a page with the query's parameters that are not empty."""
        given_query = urlencode({key: value for key, value in query.items() if value})
        return f"/{self.key}/{name}" + (f"?{given_query}" if given_query else "")

    def session(self, session_id: str, message: int | None = None) -> str:
        """Return the address of a session, or of one of its messages."""
        return link_session(f"/{self.key}/", session_id, message)


class FileLinks:
    """The names of the files of one agent, which are in one folder.

    Attributes:
        names: The pages that are in the folder.
    """

    def __init__(self, names: Collection[str]) -> None:
        self.names = names

    def has(self, name: str) -> bool:
        """Return whether the folder has a page."""
        return name in self.names

    def page(self, name: str, **query: str) -> str:
        """Return the name of the file of a page. A file has no parameters."""
        return f"{name}.html"

    def session(self, session_id: str, message: int | None = None) -> str:
        """Return the name of the file of a session, or of one of its messages."""
        anchor = f"#message-{message}" if message else ""
        return f"{name_session_file(session_id)}{anchor}"


def link_session(base: str, session_id: str, message: int | None = None) -> str:
    """Return the address of a served session below the address of its agent."""
    query = {"id": session_id} | ({"message": str(message)} if message else {})
    anchor = f"#message-{message}" if message else ""
    return f"{base}session?{urlencode(query)}{anchor}"


def name_session_file(session_id: str) -> str:
    """Return the name of a session's file. A session id may contain any character."""
    return f"session-{hashlib.sha256(session_id.encode()).hexdigest()[:16]}.html"


def render_page(template: str, context: Mapping[str, object], served: bool = False) -> str:
    """Render a template as a served page or as a single file.

    Args:
        template: The name of the template.
        context: The values of the template.
        served: Whether the page loads its style sheet and its script from the server.
    """
    from markupsafe import Markup

    style, script = read_static("pages.css"), read_static("pages.js")
    values: dict[str, object] = {"served": served, "links": None, "key": None, "here": ""}
    if not served:
        values |= {
            "policy": f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(script)}; "
            "img-src data:; base-uri 'none'; form-action 'none'",
            "style": Markup(style),
            "script": Markup(script),
        }
    return _environment().get_template(template).render(values | dict(context))


@cache
def read_static(name: str) -> str:
    """Return the text of a file that pages load."""
    return files("agent_pipeline.reports").joinpath(name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return f"'sha256-{digest}'"


@cache
def _environment() -> "Environment":
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("agent_pipeline.reports", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=make_visible,
    )
    environment.filters["short"] = shorten_id
    return environment


def make_visible(value: object) -> object:
    r"""Return a text in which characters that hide or reverse text are visible, such as `\x202e`.

    Line ends become line feeds. Values of other types are returned unchanged.
    """
    if not isinstance(value, str):
        return value
    if "\r\n" in value:
        value = value.replace("\r\n", "\n")
    if not _HIDING.search(value):
        return value
    return _HIDING.sub(lambda match: f"\\x{ord(match[0]):02x}", value)


def shorten_id(text: str, length: int = 12) -> str:
    """Return the beginning of an id, with an ellipsis if characters are left out."""
    return text if len(text) <= length else f"{text[: length - 1]}…"


def format_json(text: str) -> str:
    """Return a JSON text with line breaks and indentation, or another text unchanged."""
    stripped = text.strip()
    if not stripped.startswith(("{", "[")):
        return text
    try:
        value = json.loads(stripped)
    except (ValueError, RecursionError):
        return text
    return json.dumps(value, ensure_ascii=False, indent=2)
