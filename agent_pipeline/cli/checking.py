"""The commands config check, config show and notify test, which check and show the settings."""

from typing import Annotated

import msgspec
import typer
from rich.console import Console

from agent_pipeline.cli.words import AS_JSON, with_noun
from agent_pipeline.config.settings import Settings, config_file, load_settings
from agent_pipeline.errors import PipelineError, without_credentials
from agent_pipeline.keys import PartitionKey, parse_key
from agent_pipeline.notifications import send_test

console = Console()

UNSAFE = (
    "The bucket of the lake {} ignores conditional writes (If-Match), so two machines could "
    "overwrite each other's files: use the lake on one machine only "
    "(docs/explanation/storage.md)."
)


def check(
    with_test: Annotated[
        bool,
        typer.Option(
            "--send-test",
            hidden=True,
            help="Send a test notification to every address of notify.urls.",
        ),
    ] = False,
) -> None:
    """Check every setting, and show each changed setting and the place where it is set.

    The exit code is 1 if a setting is wrong, a store cannot be opened, a lake in s3:// cannot be
    written to, settings name an agent that no store has, or a test notification is not delivered.
    """
    from agent_pipeline.config.checks import problems, unknown_agents
    from agent_pipeline.config.setting_list import list_settings
    from agent_pipeline.defs.automation.nightly import cron_problems
    from agent_pipeline.redaction import Redactor

    settings = load_settings()
    sentences = [*problems(settings), *cron_problems(settings)]
    keys: list[PartitionKey] = []
    try:
        Redactor(settings.redaction_options)
    except PipelineError as error:
        if str(error) not in sentences:
            sentences.append(str(error))
    try:
        keys = settings.open_store().partitions()
    except PipelineError as error:
        sentences.append(str(error))
    else:
        sentences += unknown_agents(settings, keys)
    try:
        fs = settings.open_lake().fs
        if fs.is_shared and not fs.keeps_conditions():
            console.print(
                f"warning: {UNSAFE.format(fs.root)}", markup=False, highlight=False, soft_wrap=True
            )
    except PipelineError as error:
        sentences.append(str(error))
    for line in list_settings(settings, keys).lines():
        console.print(without_credentials(line), markup=False, highlight=False, soft_wrap=True)
    if with_test:
        sentences += _send_test(settings)
    for sentence in sentences:
        console.print(f"error: {sentence}", markup=False, highlight=False, soft_wrap=True)
    if sentences:
        raise typer.Exit(1)
    stores = without_credentials(", ".join(map(str, settings.stores)))
    console.print(
        f"{config_file() or 'The settings'}: no errors. {with_noun(len(keys), 'agent')} in "
        f"{stores}.",
        highlight=False,
        soft_wrap=True,
    )


def show(
    partition: Annotated[
        str, typer.Argument(help="Partition, as project/agent. Default: every partition.")
    ] = "",
    every: Annotated[
        bool, typer.Option("--all", help="Show every setting, and not only the changed settings.")
    ] = False,
    as_json: Annotated[bool, AS_JSON] = False,
) -> None:
    """Show the settings of all agents, and the settings in which an agent differs.

    Each line says where the setting is set.
    """
    from agent_pipeline.config.setting_list import list_settings

    settings = load_settings()
    keys = [parse_key(partition)] if partition else settings.open_store().partitions()
    settings_found = list_settings(settings, keys, every)
    if as_json:
        typer.echo(without_credentials(msgspec.json.encode(settings_found).decode()))
        return
    for line in settings_found.lines():
        console.print(without_credentials(line), markup=False, highlight=False, soft_wrap=True)
    if not settings_found.settings:
        console.print("Every setting has its default.")


def test_notification() -> None:
    """Send a test notification to each address of the setting `notify.urls`.

    The exit code is 1 if an address does not accept the notification.
    """
    if failures := _send_test(load_settings()):
        for failure in failures:
            console.print(f"error: {failure}", markup=False, highlight=False, soft_wrap=True)
        raise typer.Exit(1)


def _send_test(settings: Settings) -> list[str]:
    """Send a test notification to each address, and return one sentence per failure."""
    urls = settings.notify.urls
    if not urls:
        return ["A test notification needs an address: set notify.urls (docs/how-to/slack.md)."]
    failures = []
    for position, reason in enumerate(send_test(urls, settings.redaction_options), start=1):
        if reason:
            failures.append(
                f"Address {position} of notify.urls did not accept the test notification: check "
                "the address, and whether this machine can reach it."
            )
            continue
        console.print(
            f"A test notification was sent to address {position} of notify.urls.", highlight=False
        )
    return failures
