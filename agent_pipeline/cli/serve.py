"""The command serve, which serves an agent's champion with llama.cpp's server."""

import ipaddress
import os
import signal
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from agent_pipeline.cli.registry import print_next
from agent_pipeline.cli.running import check_port, daemon, webserver
from agent_pipeline.config.settings import Settings, load_settings
from agent_pipeline.errors import DataError, SettingsError
from agent_pipeline.keys import PartitionKey, parse_key
from agent_pipeline.sessions.session import Message

if TYPE_CHECKING:
    from agent_pipeline.evaluation.agent_prompt import AgentPrompt
    from agent_pipeline.export.model_server import Served

console = Console()

LLAMA_SERVER = "llama-server"
DEFAULT_PORT = 8080
SERVICES = {"webserver": webserver, "daemon": daemon}
"""The processes that `serve` started in older versions."""


def serve(
    partition: Annotated[
        str | None, typer.Argument(help="Partition, as project/agent.", show_default=False)
    ] = None,
    port: Annotated[
        int | None, typer.Option(help="Port of the server. Default: 8080.", show_default=False)
    ] = None,
    host: Annotated[str, typer.Option(help="Address on which the server listens.")] = "127.0.0.1",
) -> str:
    """Serve the champion of an agent with llama-server, and show how to call it.

    llama-server serves the champions of all agents. If llama-server is not installed, or crashes on
    this CPU, the installed binding of llama.cpp serves this agent alone. The command ends with
    Ctrl-C. If the environment variable LLAMA_API_KEY is set, clients must send this key.
    """
    from agent_pipeline.export.llama import ListenAt
    from agent_pipeline.export.model_server import API_KEY, serve_model
    from agent_pipeline.export.quantizer import find_tool
    from agent_pipeline.export.request_examples import make_curl_example, make_python_example

    if partition is None:
        raise SettingsError(
            "`agent-pipeline serve` serves the model of an agent, so give the agent "
            "(`agent-pipeline serve shop/support`); to start Dagster, use `agent-pipeline "
            "service webserver` and `agent-pipeline service daemon`, or `agent-pipeline dev`."
        )
    if partition in SERVICES:
        SERVICES[partition](port=3000 if port is None else port, host=host)
        return ""
    settings, key = load_settings(), parse_key(partition)
    served = _find_served(settings, key)
    prompt = _read_prompt(settings, key)
    question: Message = {"role": "user", "content": prompt.question or "Hello"}
    messages, tools = [*prompt.system, question], prompt.tools[:1]
    served = replace(served, messages=messages)
    key_variable = API_KEY if os.environ.get(API_KEY) else ""
    address = ListenAt(
        host, DEFAULT_PORT if port is None else port, served.name, os.environ.get(API_KEY, "")
    )
    check_port(address.host, address.port)
    if not _is_loopback(host) and not key_variable:
        _print(
            f"warning: Everybody who reaches {host} can use the model: set {API_KEY}, or keep the "
            "default of --host."
        )
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # so that the program is ended too
    _print(f"Loading the champion of {key} ...")
    program = find_tool(LLAMA_SERVER, settings.llama_cpp_path or None)
    log = settings.cache_path / f"{LLAMA_SERVER}-{address.port}.log"
    with serve_model(served, address, program, log) as server:
        _print(f"{key} is served at {server.url}. {server.description}")
        for make_example in (make_curl_example, make_python_example):
            typer.echo(f"\n{make_example(server.url, str(key), messages, tools, key_variable)}")
        _print("")
        print_next(f"chat {key}")
        _print("Ctrl-C ends the server.")
        try:
            server.wait()
        except KeyboardInterrupt:
            _print("The server has ended.")
    return ""


def _read_prompt(settings: Settings, key: PartitionKey) -> "AgentPrompt":
    """Return the system prompt and tools of the champion's training, or none if none is known."""
    from agent_pipeline.compute.params import common_params
    from agent_pipeline.evaluation.agent_prompt import AgentPrompt
    from agent_pipeline.promotion.model_prompt import read_model_prompt

    show = common_params(settings, key).shown_to_models
    try:
        return read_model_prompt(settings.open_lake(), key, "champion", show)
    except DataError as error:
        _print(f"note: {error}")
        return AgentPrompt([], [])


def _find_served(settings: Settings, key: PartitionKey) -> "Served":
    """Return the champion of an agent as it is served.

    Raises:
        DataError: The agent has no champion, or this machine's serving folder does not contain it.
    """
    from agent_pipeline.export.model_server import Served
    from agent_pipeline.export.report import read_export_report
    from agent_pipeline.export.serving_folder import PRESET, served_form, serving_root
    from agent_pipeline.promotion.champions import serving_difference
    from agent_pipeline.promotion.ledger import EXPORT

    lake = settings.open_lake()
    champion = lake.champion(EXPORT, key)
    if champion is None:
        raise DataError(
            f"{key} has no champion to serve: run `agent-pipeline promote {key}` to make the "
            "latest export the champion.",
            partition=key,
        )
    preset = serving_root(lake) / PRESET
    if not preset.is_file() or (difference := serving_difference(lake, key)):
        reason = difference if preset.is_file() else f"{preset} does not exist"
        raise DataError(
            f"The serving folder on this machine does not contain the champion of {key} "
            f"({reason}): run `agent-pipeline materialize {key} --select serving`.",
            partition=key,
        )
    context = read_export_report(champion).ollama.num_ctx
    return Served(str(key), served_form(lake, champion), context, preset)


def _is_loopback(host: str) -> bool:
    """Return whether only this machine can reach an address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _print(text: str) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)
