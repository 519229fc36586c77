"""The web application of `agent-pipeline pages`: sessions, review, evaluation, episodes, decision.

The application reads the lake at every request, so a page shows the newest data. Labels are the
only data that it writes.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from agent_pipeline.config.settings import Settings
from agent_pipeline.errors import DataError, MissingError, PartitionError, PipelineError
from agent_pipeline.keys import PartitionKey, parse_key
from agent_pipeline.pages.desk import DEFAULT_REVIEW, ReviewDesk, ReviewOptions
from agent_pipeline.pages.episodes import make_last_episodes_page
from agent_pipeline.pages.nights import make_night_page
from agent_pipeline.pages.overview import list_agents, list_nights, read_night
from agent_pipeline.promotion.decision_page import ASSET as CHAMPION
from agent_pipeline.promotion.production import ASSET as PRODUCTION
from agent_pipeline.promotion.production import read_production_report
from agent_pipeline.promotion.production_page import make_production_page
from agent_pipeline.reports.page import PAGE, make_context
from agent_pipeline.reports.rendering import (
    SERVED_POLICY,
    STATIC_FILES,
    STORED_MARK,
    STORED_POLICY,
    ServedLinks,
    read_static,
    render_page,
)
from agent_pipeline.reports.session_pages import (
    SessionFilter,
    list_sessions,
    make_session_page,
    read_session,
)
from agent_pipeline.storage.lake import Lake
from agent_pipeline.structs import decode_json

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

MAX_NOTE, MAX_NAME = 20_000, 200
"""Maximum number of characters of a note, and of an annotator's name."""

HEADERS = {
    "Content-Security-Policy": SERVED_POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


class Judgment(msgspec.Struct, frozen=True):
    """What the page of a review sends: a decision on a session.

    Attributes:
        session_id: The session.
        mark: The decision. An empty text changes only the note.
        note: The annotator's note.
        annotator: The annotator. An empty text means the annotator of the command.
    """

    session_id: str
    mark: str
    note: Annotated[str, msgspec.Meta(max_length=MAX_NOTE)] = ""
    annotator: Annotated[str, msgspec.Meta(max_length=MAX_NAME)] = ""


class Site:
    """The pages of all agents of one lake.

    Attributes:
        settings: The settings.
        lake: The lake.
    """

    def __init__(self, settings: Settings, options: ReviewOptions) -> None:
        self.settings = settings
        self.lake: Lake = settings.open_lake()
        self.desk = ReviewDesk(settings, self.lake, options)

    def show_agents(self, request: "Request") -> "Response":
        """Return the first page, which lists the agents."""
        context: dict[str, object] = {
            "agents": list_agents(self.lake),
            "nights": list_nights(self.lake),
            "lake": str(self.lake.root),
        }
        return respond("agents.jinja", context)

    def show_whole_night(self, request: "Request") -> "Response":
        """Return the page about one night of all agents."""
        from starlette.responses import HTMLResponse

        page = read_night(self.lake, request.path_params["name"])
        return HTMLResponse(page, 200, HEADERS | {"Content-Security-Policy": STORED_POLICY})

    def show_sessions(self, request: "Request") -> "Response":
        """Return the list of an agent's sessions."""
        key, query = find_key(request), request.query_params
        wanted = SessionFilter(
            verdict=query.get("verdict", ""),
            use=query.get("use", ""),
            damage=query.get("damage", ""),
            text=query.get("text", ""),
            page=to_count(query.get("page")) or 1,
        )
        sessions = list_sessions(self.lake, key, wanted)
        filters = {name: getattr(wanted, name) for name in wanted.__struct_fields__}
        filters["page"] = min(max(wanted.page, 1), sessions.pages)
        return respond("sessions.jinja", {"sessions": sessions, "wanted": filters}, key, "sessions")

    def show_session(self, request: "Request") -> "Response":
        """Return one session."""
        key, query = find_key(request), request.query_params
        row = read_session(self.lake, key, query.get("id", ""))
        page = make_session_page(row, to_count(query.get("message")), to_count(query.get("part")))
        links = ServedLinks(key)
        part_links = [
            links.page("session", id=page.session_id, part=str(part))
            for part in range(1, page.parts + 1)
        ]
        return respond(
            "session.jinja", {"session": page, "part_links": part_links}, key, "sessions"
        )

    def show_review(self, request: "Request") -> "Response":
        """Return the review: the next session to judge, or the session that the address names."""
        key, query = find_key(request), request.query_params
        page = self.desk.make_page(
            key, query.get("annotator", ""), query.get("id", ""), query.get("last", "")
        )
        return respond("review.jinja", {"review": page}, key, "review")

    async def record_judgment(self, request: "Request") -> "Response":
        """Write a judgment, and return the address of the next session as JSON."""
        from starlette.concurrency import run_in_threadpool
        from starlette.responses import JSONResponse

        try:
            judgment = decode_json(await request.body(), Judgment)
        except (msgspec.DecodeError, msgspec.ValidationError) as error:
            return JSONResponse({"error": f"The judgment cannot be read: {error}"}, 400, HEADERS)
        try:
            following = await run_in_threadpool(self._record, find_key(request), judgment)
        except PipelineError as error:
            status = 404 if isinstance(error, DataError) else 400
            return JSONResponse({"error": str(error)}, status, HEADERS)
        return JSONResponse({"next": following}, 200, HEADERS)

    def _record(self, key: PartitionKey, judgment: "Judgment") -> str:
        self.desk.record(key, judgment.annotator, judgment.session_id, judgment.mark, judgment.note)
        return self.desk.find_next(key, judgment.annotator, judgment.session_id)

    def show_evaluation(self, request: "Request") -> "Response":
        """Return the page that the last evaluation stored."""
        return self._send_stored(find_key(request), "evaluation")

    def show_decision(self, request: "Request") -> "Response":
        """Return the page that the last decision stored."""
        return self._send_stored(find_key(request), CHAMPION)

    def show_episodes(self, request: "Request") -> "Response":
        """Return the transcripts of the last episodes."""
        key = find_key(request)
        page = make_last_episodes_page(self.settings, self.lake, key)
        return respond("page.jinja", make_context(page), key, "episodes")

    def show_production(self, request: "Request") -> "Response":
        """Return the comparison of the champion with the agent that it replaces."""
        key = find_key(request)
        report = read_production_report(self.lake.latest(PRODUCTION, key))
        page = make_production_page(self.lake, key, report)
        return respond("page.jinja", make_context(page), key, "production")

    def show_nights(self, request: "Request") -> "Response":
        """Return the decisions and the moves of the served model."""
        key = find_key(request)
        return respond("night.jinja", {"night": make_night_page(self.lake, key)}, key, "night")

    def _send_stored(self, key: PartitionKey, asset: str) -> "Response":
        artifact = self.lake.latest(asset, key)
        if PAGE not in artifact.manifest["files"]:
            raise DataError(
                f"The {asset} of {key} has no page, because a session on the page was forgotten "
                f"or an older version made it: materialize `{asset}` again."
            )
        return respond_stored((artifact.path / PAGE).read_text(encoding="utf-8"), key)


def make_app(settings: Settings, options: ReviewOptions = DEFAULT_REVIEW) -> "Starlette":
    """Return the application, given the settings and the options of the review.

    The caller adds the middleware that refuses requests of other pages.
    """
    from starlette.applications import Starlette
    from starlette.routing import Route

    site = Site(settings, options)
    agent = "/{project}/{agent}"
    routes = [
        Route("/", site.show_agents),
        Route("/static/{name}", send_static),
        Route("/nights/{name}", site.show_whole_night),
        Route(f"{agent}/sessions", site.show_sessions),
        Route(f"{agent}/session", site.show_session),
        Route(f"{agent}/review", site.show_review),
        Route(f"{agent}/review", site.record_judgment, methods=["POST"]),
        Route(f"{agent}/evaluation", site.show_evaluation),
        Route(f"{agent}/decision", site.show_decision),
        Route(f"{agent}/episodes", site.show_episodes),
        Route(f"{agent}/production", site.show_production),
        Route(f"{agent}/night", site.show_nights),
    ]
    handlers: dict[Any, Callable[..., Any]] = {PipelineError: show_error, 404: show_missing}
    return Starlette(routes=routes, exception_handlers=handlers)


def respond(
    template: str,
    context: dict[str, object],
    key: PartitionKey | None = None,
    here: str = "",
    status: int = 200,
) -> "Response":
    """Return a served page.

    Args:
        template: The template.
        context: The values of the template.
        key: The agent that the page is about.
        here: The name of the page in the navigation.
        status: The HTTP status.
    """
    from starlette.responses import HTMLResponse

    links = ServedLinks(key) if key else None
    values = {"key": key, "links": links, "here": here} | context
    # A lone surrogate cannot be encoded; the templates have made it visible.
    return HTMLResponse(render_page(template, values, served=True), status, HEADERS)


def respond_stored(text: str, key: PartitionKey) -> "Response":
    """Return a single file that a run has stored, with working links to served pages."""
    from starlette.responses import HTMLResponse

    served = text.replace(STORED_MARK, f'<html lang="en" data-served="/{key}/">', 1)
    return HTMLResponse(served, 200, HEADERS | {"Content-Security-Policy": STORED_POLICY})


def send_static(request: "Request") -> "Response":
    """Return the style sheet or the script."""
    from starlette.exceptions import HTTPException
    from starlette.responses import Response

    name = request.path_params["name"]
    if name not in STATIC_FILES:
        raise HTTPException(404)
    return Response(
        read_static(name), 200, HEADERS | {"Cache-Control": "no-cache"}, STATIC_FILES[name]
    )


def show_error(request: "Request", error: Exception) -> "Response":
    """Return a page with the sentence of an error."""
    missing = isinstance(error, MissingError | PartitionError | DataError)
    return respond(
        "message.jinja",
        {"title": "Nothing to show", "sentence": str(error)},
        status=404 if missing else 500,
    )


def show_missing(request: "Request", error: Exception) -> "Response":
    """Return the page for an address that does not exist."""
    sentence = f"There is no page {request.url.path}: begin with the list of agents."
    return respond("message.jinja", {"title": "No such page", "sentence": sentence}, status=404)


def find_key(request: "Request") -> PartitionKey:
    """Return the agent in the address of a request.

    Raises:
        PartitionError: The address names no agent.
    """
    return parse_key(f"{request.path_params['project']}/{request.path_params['agent']}")


def to_count(text: str | None) -> int | None:
    """Return a positive whole number, or None if the text is not such a number."""
    return int(text) if text and text.isascii() and text.isdigit() and len(text) < 10 else None
