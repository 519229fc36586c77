"""Messages to people, sent by Apprise to the addresses in the setting `notify.urls`.

A message leaves the machine, so it never holds what a user or an agent wrote. If a text in a
message still looks private, it is replaced by a pseudonym. Which events are worth a message is
decided by the callers: `defs.automation` and `governance.champion_moves`.
"""

import os
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agent_pipeline.errors import SettingsError
from agent_pipeline.redaction import RedactionOptions
from agent_pipeline.redaction.exceptions import redact_sentence
from agent_pipeline.storage.pointers import Entry

if TYPE_CHECKING:
    import apprise

MAX_LINES = 20
"""Maximum number of lines per message. A longer message ends with the number of omitted lines."""


@dataclass(frozen=True)
class Notification:
    """One event that users should know about.

    Attributes:
        cause: The kind of event, such as `run failed`. Events of one cause share a message.
        partition: The agent's partition, or an empty string if the event concerns no single agent.
        text: The facts. Text of users and agents is forbidden here.
    """

    cause: str
    partition: str
    text: str


def send_notifications(
    urls: Sequence[str], notifications: Iterable[Notification], redaction: RedactionOptions
) -> str:
    """Send one message per cause, with one line per notification.

    A failure to send never raises: the run that reports an event must not fail because nobody
    could be reached. If only some messages are refused, a further message reports that.

    Args:
        urls: The addresses in Apprise's notation. If there are none, nothing is sent.
        notifications: The events to report.
        redaction: What becomes a pseudonym.

    Returns:
        Why no message could be delivered, or an empty string.
    """
    lines_by_cause: defaultdict[str, list[str]] = defaultdict(list)
    for notification in notifications:
        prefix = f"{notification.partition}: " if notification.partition else ""
        lines_by_cause[notification.cause].append(prefix + notification.text)
    try:
        senders = open_senders(urls) if lines_by_cause else []
    except SettingsError as error:
        return str(error)
    refused_causes = []
    for cause, lines in lines_by_cause.items():
        shown_lines = lines[:MAX_LINES]
        if len(lines) > MAX_LINES:
            shown_lines.append(f"and {len(lines) - MAX_LINES} more")
        text = redact_sentence("\n".join(shown_lines), redaction)
        if senders and not _send_message(senders, cause, text):
            refused_causes.append(f"{cause} ({len(lines)})")
    if not refused_causes:
        return ""
    if len(refused_causes) == len(lines_by_cause):
        return (
            f"No notification was delivered ({', '.join(refused_causes)}). All {len(senders)} "
            "addresses in notify.urls failed."
        )
    text = f"{', '.join(refused_causes)}: see the runs in the UI."
    _send_message(senders, "a message was refused", text)
    return ""


def send_test(urls: Sequence[str], redaction: RedactionOptions) -> list[str]:
    """Send a test notification to each address, and return the reason for each failure.

    An empty text stands for an address that accepted the notification.
    """
    test = Notification("test", "", "This is a test notification. Nothing happened.")
    return [send_notifications([url], [test], redaction) for url in urls]


def describe_manual_move(partition: str, entry: Entry) -> Notification:
    """Return the notification that a user promoted a model, or rolled back to an earlier model."""
    previous = f", instead of {entry.against[:16]}" if entry.against else ""
    champion = (entry.champion or "none")[:16]
    reason = entry.why or "no reason given"
    text = f"{champion} is the champion{previous}: {entry.who}, {reason}."
    return Notification("champion moved", partition, text)


def open_senders(urls: Sequence[str]) -> list["apprise.Apprise"]:
    """Return one Apprise object per address. `$NAME` in an address is replaced by the variable.

    Errors never show an address, because addresses contain keys.

    Raises:
        SettingsError: Apprise does not support an address, or Apprise is not installed.
    """
    if not urls:
        return []
    try:
        import apprise
    except ImportError:
        raise SettingsError(
            "The setting `notify.urls` needs the package Apprise: run `pip install "
            "'agent-pipeline[notify]'`."
        ) from None
    senders = []
    for position, url in enumerate(urls, start=1):
        sender = apprise.Apprise()
        if not sender.add(os.path.expandvars(url)):
            scheme = url.partition("://")[0] if "://" in url else "no scheme"
            raise SettingsError(
                f"Apprise does not support address {position} of `notify.urls` ({scheme}): see "
                "https://appriseit.com/services for the supported addresses. If the address names "
                "an environment variable, check that the variable is set."
            )
        senders.append(sender)
    return senders


def _send_message(senders: Sequence["apprise.Apprise"], cause: str, text: str) -> bool:
    """Send a message to all addresses, and return whether at least one address accepted it."""
    title = f"agent-pipeline: {cause}"
    accepted = [bool(sender.notify(title=title, body=text)) for sender in senders]
    return any(accepted)
