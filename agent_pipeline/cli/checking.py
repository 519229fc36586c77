"""The command check, which checks the settings before a run needs them."""

from typing import Annotated

import typer
from rich.console import Console

from agent_pipeline.cli.words import with_noun
from agent_pipeline.config.settings import Settings, config_file, load_settings
from agent_pipeline.errors import PipelineError, without_credentials
from agent_pipeline.keys import PartitionKey
from agent_pipeline.notifications import send_test

console = Console()

UNSAFE = (
    "The store of the lake {} takes writes whose condition does not hold: let one machine alone "
    "work on it (docs/explanation/storage.md)."
)


def check(
    with_test: Annotated[
        bool,
        typer.Option(
            "--send-test", help="Send a test notification to every address of notify.urls."
        ),
    ] = False,
) -> None:
    """Check every setting, and show each changed setting and the place where it is set.

    The exit code is 1 if a setting is wrong, a store cannot be opened, a lake in s3:// cannot be
    written to, settings name an agent that no store has, or a test notification is not delivered.
    """
    from agent_pipeline.config.checks import problems, unknown_agents
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
    for line in set_values(keys):
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


def _send_test(settings: Settings) -> list[str]:
    """Send a test notification to each address, and return one sentence per failure."""
    urls = settings.notify.urls
    if not urls:
        return ["--send-test needs an address: set notify.urls (docs/how-to/slack.md)."]
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


def set_values(keys: list[PartitionKey]) -> list[str]:
    """Return one line per setting that is not a default.

    The settings for all agents come first, and then those of agents that differ.
    """
    from agent_pipeline.config.assets import ASSETS
    from agent_pipeline.config.resolution import resolve, shared

    settings = load_settings()
    lines: dict[str, None] = {}
    for asset, options in ASSETS.items():
        general = resolve(settings, options).table()
        for who, key in (("all agents", None), *((str(key), key) for key in keys)):
            own_values = [
                row
                for row in resolve(settings, options, key).table()
                if key is None or row not in general
            ]
            lines |= dict.fromkeys(
                f"{who}: {asset}.{row['setting']} = {row['value']}, set by {row['set_by']}"
                for row in own_values
            )
            of_all = shared(settings, asset) if key else []
            several = [row for row in shared(settings, asset, key) if row not in of_all]
            lines |= dict.fromkeys(
                f"{who}: {row['setting']} = {row['value']}, set by {row['set_by']}"
                for row in several
            )
    return list(lines)
