"""Partition keys: a function that makes keys from names, and a function that parses keys.

A key is `project/agent`. It becomes a folder name, a part of a URL, a Dagster partition and the
name of an Ollama model. So each part is a slug of `[a-z0-9._-]` that starts with a letter or a
digit. Keys come from stores, from the shell and from the UI, where anybody can type any key, so
`parse_key` checks each of them.
"""

import hashlib
import re
import unicodedata
from typing import NamedTuple

from agent_pipeline.errors import PartitionError

_PART = re.compile(r"[a-z0-9][a-z0-9._-]*")
_MAX = 100
_MAX_BODY = 80
"""Maximum number of characters of a changed name that are kept before the hash."""


class PartitionKey(NamedTuple):
    """A project and one of its agents."""

    project: str
    agent: str

    def __str__(self) -> str:
        return f"{self.project}/{self.agent}"


def make_key(project: str, agent: str) -> PartitionKey:
    """Return the key of a project's agent, from names as people write them.

    The name `My Project` becomes `my-project-` and a hash of the name. Two different names never
    have the same key.

    Raises:
        PartitionError: a name has no usable character, or could leave its folder (`..`).
    """
    return PartitionKey(_slug(project, "project"), _slug(agent, "agent"))


def parse_key(text: str) -> PartitionKey:
    """Parse a text as a partition key.

    Raises:
        PartitionError: the text is not `project/agent` in slugs.
    """
    project, slash, agent = text.partition("/")
    if not slash or any(not _valid(part) for part in (project, agent)):
        raise PartitionError(
            f"{text!r} is not a partition: write it as project/agent, each part of a-z, 0-9, '.', "
            "'_' and '-', and begin each part with a letter or a digit (for example tau/airline)."
        )
    return PartitionKey(project, agent)


def _valid(part: str) -> bool:
    return bool(_PART.fullmatch(part)) and ".." not in part and len(part) <= _MAX


def _slug(name: str, what: str) -> str:
    """Return the slug of a name: the name itself if it is a slug, or its valid part and a hash.

    Without the hash, `Foo Bar` and `foo-bar` would be the same agent. The slug depends on the name
    alone, so an agent keeps its key when other agents appear. Names that differ only in their
    Unicode form (composed or decomposed) are one name.
    """
    if _valid(name):
        return name
    name = unicodedata.normalize("NFC", name)
    slug = _plain_slug(name)
    if not _valid(slug):
        raise PartitionError(
            f"The {what} name {name!r} cannot be a partition: begin the name with a letter or a "
            "digit, and do not use '..' in it."
        )
    return f"{slug[:_MAX_BODY].rstrip('-._')}-{name_hash(name)}"


def may_mean(name: str, part: str) -> bool:
    """Return whether a name that a user typed may mean a part of a partition key.

    This is so if the name equals the part, or differs from it only in case and signs.
    """
    try:
        return part in (_plain_slug(name), _slug(name, "name"))
    except PartitionError:
        return False


def _plain_slug(name: str) -> str:
    return re.sub(r"[^a-z0-9._-]+", "-", name.lower()).strip("-")


def name_hash(name: str) -> str:
    """Return a short hash that makes the slugs of two names different."""
    return hashlib.sha256(
        unicodedata.normalize("NFC", name).encode("utf-8", "backslashreplace")
    ).hexdigest()[:8]
