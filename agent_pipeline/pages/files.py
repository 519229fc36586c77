"""The pages of one agent as single files in a folder."""

from pathlib import Path

import msgspec

from agent_pipeline.errors import DataError
from agent_pipeline.keys import PartitionKey
from agent_pipeline.reports.rendering import FileLinks, name_session_file, render_page
from agent_pipeline.reports.session_pages import (
    SESSIONS_PER_PAGE,
    SessionFilter,
    list_sessions,
    make_session_page,
    read_session,
)
from agent_pipeline.storage.lake import Lake


def write_pages(lake: Lake, key: PartitionKey, folder: Path, sample: int) -> Path:
    """Write an agent's pages as single files, and return the path of the list of sessions.

    Args:
        lake: The lake.
        key: The agent.
        folder: The folder, which is made if it is missing.
        sample: The number of sessions to write, the newest first.

    Raises:
        DataError: The folder cannot be written, or the lake has no sessions of the agent.
    """
    common = {"key": key, "links": FileLinks()}
    listed = list_sessions(lake, key, SessionFilter())
    lines = [
        line
        for page in range(1, min(listed.pages, -(-sample // SESSIONS_PER_PAGE)) + 1)
        for line in list_sessions(lake, key, SessionFilter(page=page)).lines
    ][:sample]
    contents = {
        "sessions.html": render_page(
            "sessions.jinja",
            common
            | {
                "here": "sessions",
                "wanted": {},
                "sessions": msgspec.structs.replace(listed, lines=lines),
            },
        )
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for line in lines:
            page = make_session_page(read_session(lake, key, line.session_id), whole=True)
            contents[name_session_file(line.session_id)] = render_page(
                "session.jinja", common | {"here": "sessions", "session": page, "part_links": []}
            )
        for name, text in contents.items():
            (folder / name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise DataError(
            f"The pages cannot be written to {folder} ({error.strerror}): name another folder."
        ) from error
    return folder / "sessions.html"
