"""The pages of one agent as single files in a folder."""

from contextlib import suppress
from pathlib import Path

import msgspec

from agent_pipeline.config.settings import Settings
from agent_pipeline.errors import DataError
from agent_pipeline.keys import PartitionKey
from agent_pipeline.pages.episodes import make_last_episodes_page
from agent_pipeline.pages.nights import make_night_page
from agent_pipeline.promotion.decision_page import ASSET as CHAMPION
from agent_pipeline.promotion.production import ASSET as PRODUCTION
from agent_pipeline.promotion.production import read_production_report
from agent_pipeline.promotion.production_page import make_production_page
from agent_pipeline.reports.page import PAGE, render
from agent_pipeline.reports.rendering import FileLinks, name_session_file, render_page
from agent_pipeline.reports.session_pages import (
    SESSIONS_PER_PAGE,
    SessionFilter,
    list_sessions,
    make_session_page,
    read_session,
)
from agent_pipeline.storage.lake import Lake


def write_pages(settings: Settings, key: PartitionKey, folder: Path, sample: int) -> Path:
    """Write an agent's pages as single files, and return the path of the list of sessions.

    Args:
        settings: The settings.
        key: The agent.
        folder: The folder, which is made if it is missing.
        sample: The number of sessions to write, the newest first.

    Raises:
        DataError: The folder cannot be written, or the lake has no sessions of the agent.
    """
    lake = settings.open_lake()
    stored = find_stored_pages(settings, lake, key)
    links = FileLinks(["sessions", "night", *stored])
    common: dict[str, object] = {"key": key, "links": links}
    listed = list_sessions(lake, key, SessionFilter())
    lines = [
        line
        for page in range(1, min(listed.pages, -(-sample // SESSIONS_PER_PAGE)) + 1)
        for line in list_sessions(lake, key, SessionFilter(page=page)).lines
    ][:sample]
    shown = {"sessions": msgspec.structs.replace(listed, lines=lines), "wanted": {}}
    night = {"here": "night", "night": make_night_page(lake, key)}
    contents = {
        links.page("sessions"): render_page(
            "sessions.jinja", common | shown | {"here": "sessions"}
        ),
        links.page("night"): render_page("night.jinja", common | night),
    }
    contents |= {links.page(name): text for name, text in stored.items()}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in contents.items():
            (folder / name).write_text(text, encoding="utf-8")
        for line in lines:
            page = make_session_page(read_session(lake, key, line.session_id), whole=True)
            session = {"here": "sessions", "session": page, "part_links": []}
            text = render_page("session.jinja", common | session)
            (folder / name_session_file(line.session_id)).write_text(text, encoding="utf-8")
    except OSError as error:
        raise DataError(
            f"The pages cannot be written to {folder} ({error.strerror}): choose another folder."
        ) from error
    return folder / links.page("sessions")


def find_stored_pages(settings: Settings, lake: Lake, key: PartitionKey) -> dict[str, str]:
    """Return the pages about an agent's models, by name. Pages that do not exist are left out."""
    pages = {}
    for name, asset in (("evaluation", "evaluation"), ("decision", CHAMPION)):
        with suppress(DataError):
            artifact = lake.latest(asset, key)
            if PAGE in artifact.manifest["files"]:
                pages[name] = (artifact.path / PAGE).read_text(encoding="utf-8")
    with suppress(DataError):
        pages["episodes"] = render(make_last_episodes_page(settings, lake, key))
    with suppress(DataError):
        report = read_production_report(lake.latest(PRODUCTION, key))
        pages["production"] = render(make_production_page(lake, key, report))
    return pages
