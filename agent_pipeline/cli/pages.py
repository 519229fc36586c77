"""The commands that show pages in a browser: pages and review."""

import threading
import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple
from urllib.parse import quote

import typer
from rich.console import Console

from agent_pipeline.cli.labels import FIRST, SAMPLE, SEED
from agent_pipeline.cli.running import check_port, require_judged_sessions
from agent_pipeline.cli.webserver import OwnPagesOnly
from agent_pipeline.config.settings import Settings, load_settings
from agent_pipeline.keys import parse_key

if TYPE_CHECKING:
    from agent_pipeline.pages.desk import ReviewOptions

console = Console()

PORT = Annotated[int, typer.Option(help="Port of the server.")]
HOST = Annotated[
    str,
    typer.Option(
        help=(
            "Address on which the server listens. The pages have no login, so change the default "
            "only if a proxy with a login protects the server."
        )
    ),
]
BROWSE = Annotated[bool, typer.Option("--open", help="Open the page in the browser.")]
DEFAULT_PORT = 3010


def pages(
    partition: Annotated[
        str | None, typer.Argument(help="Partition, as project/agent, to show first.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder to which the pages of the partition are written as single files, instead "
            "of a server."
        ),
    ] = None,
    sample: Annotated[
        int, typer.Option(min=1, help="Number of sessions that --out writes, the newest first.")
    ] = 50,
    port: PORT = DEFAULT_PORT,
    host: HOST = "127.0.0.1",
    browse: BROWSE = False,
) -> None:
    """Show sessions, evaluations, episodes and decisions as pages in a browser.

    The command serves the pages until Ctrl-C ends it.
    """
    from agent_pipeline.errors import SettingsError
    from agent_pipeline.pages.files import write_pages

    settings = load_settings()
    if out is None:
        path = f"/{parse_key(partition)}/sessions" if partition else "/"
        run_server(settings, ServedAt(host, port), path, browse)
        return
    if partition is None:
        raise SettingsError("--out writes the pages of one agent: give a partition too.")
    index = write_pages(settings, parse_key(partition), out, sample)
    console.print(str(index), markup=False, highlight=False, soft_wrap=True)
    if browse:
        webbrowser.open(index.absolute().as_uri())


def review(
    partition: Annotated[str, typer.Argument(help="Partition, as project/agent.")],
    annotator: Annotated[
        str, typer.Option(help="Name of the person who judges. Default: the user of this machine.")
    ] = "",
    guidelines: Annotated[
        Path | None,
        typer.Option(
            help="Text file with guidelines. Default: guidelines.md in the folder of labels."
        ),
    ] = None,
    sample: SAMPLE = 50,
    seed: SEED = 0,
    first: FIRST = "",
    port: PORT = DEFAULT_PORT,
    host: HOST = "127.0.0.1",
    browse: Annotated[
        bool, typer.Option("--open/--no-open", help="Open the page in the browser.")
    ] = True,
) -> None:
    """Judge sessions by keyboard, on a page in the browser.

    Each judgment is written at once to the file review.jsonl in the folder of the setting labels.
    The command serves the page until Ctrl-C ends it. If it is started again, the review continues
    where it ended. Sessions that were never read are read first.
    """
    from agent_pipeline.pages.desk import ReviewDesk, ReviewOptions
    from agent_pipeline.storage.pointers import user_name

    key, settings = parse_key(partition), load_settings()
    require_judged_sessions(settings, key)
    options = ReviewOptions(annotator or user_name(), sample, seed, first, guidelines)
    # A mistake in the settings or in the lake is shown before the server starts.
    ReviewDesk(settings, settings.open_lake(), options).make_page(key, "")
    run_server(settings, ServedAt(host, port), f"/{key}/review", browse, options)


class ServedAt(NamedTuple):
    """The address and the port on which the server listens."""

    host: str
    port: int


def run_server(
    settings: Settings,
    address: ServedAt,
    path: str,
    browse: bool,
    options: "ReviewOptions | None" = None,
) -> None:
    """Serve the pages until the process is interrupted.

    Args:
        settings: The settings.
        address: The address to listen on.
        path: The path of the page that is shown first.
        browse: Whether to open this page in the browser.
        options: The options of the review.

    Raises:
        SettingsError: The server cannot listen there.
    """
    import uvicorn

    from agent_pipeline.pages.app import make_app
    from agent_pipeline.pages.desk import ReviewOptions
    from agent_pipeline.storage.pointers import user_name

    host, port = address
    check_port(host, port)
    settings.open_lake()  # an error in the settings is shown before the server starts
    name = f"[{host}]" if ":" in host else host
    url = f"http://{name}:{port}{quote(path, safe='/?=&')}"
    console.print(f"Pages: {url}", markup=False, highlight=False, soft_wrap=True)
    if browse:
        threading.Timer(1, webbrowser.open, [url]).start()
    app = make_app(settings, options or ReviewOptions(annotator=user_name()))
    uvicorn.run(OwnPagesOnly(app, settings.ui_hosts), host=host, port=port, log_level="warning")
