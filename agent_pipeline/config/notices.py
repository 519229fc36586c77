"""Telling people what happened: one message a cause, by Apprise, to the addresses of the setting `notify.urls`."""

import os
from collections import defaultdict
from collections.abc import Iterable
from typing import Any, NamedTuple

from agent_pipeline.config.settings import Settings
from agent_pipeline.errors import SettingsError
from agent_pipeline.storage.pointers import Entry

LINES = 20
"""The most lines of a message."""


class Notice(NamedTuple):
    """Something that a person should know: what kind of thing it is (`run failed`), of which partition (empty: of none), and the facts.

    The text must hold nothing that a user or an agent said: it leaves the machine.
    """

    cause: str
    partition: str
    text: str


def tell(settings: Settings, notices: Iterable[Notice]) -> str:
    """Send a message for each cause, with a line for each notice; without an address nothing is sent.

    Returns why nobody could be told, or an empty text: that nobody can be told must not end what is told of. An address that cannot be
    reached does not keep the others from being told, nor a message that all refuse the other messages: it is told that there was one.
    """
    causes: defaultdict[str, list[str]] = defaultdict(list)
    for cause, partition, text in notices:
        causes[cause].append(f"{partition}: {text}" if partition else text)
    try:
        senders = addresses(settings) if causes else []
    except SettingsError as error:
        return str(error)
    refused = []
    for cause, lines in causes.items():
        more = [f"and {len(lines) - LINES} more"] if len(lines) > LINES else []
        if senders and not _sent(senders, cause, "\n".join(lines[:LINES] + more)):
            refused.append(f"{cause} ({len(lines)})")
    if refused and len(refused) == len(causes):
        return f"Nobody could be told of: {', '.join(refused)}. None of the {len(senders)} addresses of notify.urls could be reached."
    if refused:
        _sent(senders, "a message was refused", f"{', '.join(refused)}: see the runs in the UI.")
    return ""


def _sent(senders: list[Any], cause: str, text: str) -> bool:
    delivered = [sender.notify(title=f"agent-pipeline: {cause}", body=text) for sender in senders]
    return any(delivered)


def moved_by_hand(partition: str, entry: Entry) -> Notice:
    """That a person promoted an export or rolled back."""
    before = f", instead of {entry.against[:16]}" if entry.against else ""
    return Notice(
        "champion moved",
        partition,
        f"{(entry.champion or 'none')[:16]} is the champion{before}: {entry.who}, {entry.why or 'no reason given'}.",
    )


def addresses(settings: Settings) -> list[Any]:
    """An Apprise object for each address; `$NAME` in one is read from the environment. An address is never shown: it holds keys.

    Raises:
        SettingsError: an address is none, or Apprise is not installed.
    """
    if not settings.notify.urls:
        return []
    try:
        import apprise
    except ImportError:
        raise SettingsError(
            "notify.urls needs Apprise: pip install 'agent-pipeline[notify]'."
        ) from None
    senders = []
    for number, url in enumerate(settings.notify.urls, 1):
        sender = apprise.Apprise()
        if not sender.add(os.path.expandvars(url)):
            scheme = url.partition("://")[0] if "://" in url else "no scheme"
            raise SettingsError(
                f"Address {number} of notify.urls ({scheme}) is none that Apprise knows: https://appriseit.com/services lists them. A "
                "variable that it names may not be set."
            )
        senders.append(sender)
    return senders
