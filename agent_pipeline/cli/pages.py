"""The commands that show pages in a browser: pages and review."""

import threading
import webbrowser
from pathlib import Path
from typing import Annotated
from urllib.parse import quote

import typer
from rich.console import Console

from agent_pipeline.cli.running import check_port
from agent_pipeline.cli.webserver import OwnPagesOnly
from agent_pipeline.config.settings import Settings, load_settings
from agent_pipeline.keys import parse_key

console = Console()

PORT = Annotated[int, typer.Option(help="Port of the server.")]
HOST = Annotated[
    str,
    typer.Option(
        help="Address on which the server listens. The pages have no login, so keep the default "
        "unless a proxy with a login stands in front."
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
        run_server(settings, host, port, path, browse)
        return
    if partition is None:
        raise SettingsError("--out writes the pages of one agent: name a partition too.")
    index = write_pages(settings.open_lake(), parse_key(partition), out, sample)
    console.print(str(index), markup=False, highlight=False, soft_wrap=True)
    if browse:
        webbrowser.open(index.absolute().as_uri())


def run_server(settings: Settings, host: str, port: int, path: str, browse: bool) -> None:
    """Serve the pages until the process is interrupted.

    Args:
        settings: The settings.
        host: The address to listen on.
        port: The port.
        path: The path of the page that is shown first.
        browse: Whether to open this page in the browser.

    Raises:
        SettingsError: The server cannot listen there.
    """
    import uvicorn

    from agent_pipeline.pages.app import make_app

    check_port(host, port)
    name = f"[{host}]" if ":" in host else host
    address = f"http://{name}:{port}{quote(path, safe='/?=&')}"
    console.print(f"Pages: {address}", markup=False, highlight=False, soft_wrap=True)
    if browse:
        threading.Timer(1, webbrowser.open, [address]).start()
    app = OwnPagesOnly(make_app(settings), settings.ui_hosts)
    uvicorn.run(app, host=host, port=port, log_level="warning")
