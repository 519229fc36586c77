"""Opens the root of a lake, a folder or a bucket, and says what is wrong with it before anything is read or written."""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from upath import UPath

from agent_pipeline.errors import LakeError, SettingsError, first_line

LOCAL = ("", "file", "local")
"""The protocols of a folder of this machine."""


def open_root(root: str | UPath, options: Mapping[str, Any]) -> UPath:
    _refuse_credentials(str(root))
    try:
        # What other machines write must be seen: no listing is kept from one call to the next.
        fresh = {"use_listings_cache": False} if "://" in str(root) else {}
        path = UPath(root, **(fresh | dict(options)))
        protocol, _ = path.protocol, path.fs
    except ImportError as error:
        raise SettingsError(
            f"The lake {root} cannot be opened without a package that is missing ({error})."
        ) from error
    except ValueError as error:
        raise SettingsError(
            f"The lake {root} cannot be opened ({error}): set lake to a folder, or to a URL as s3://bucket/lake."
        ) from error
    if protocol in LOCAL:
        local = Path(path.path)
        if local.is_file():
            raise SettingsError(
                f"The lake {root} is a file: set lake to a folder, or to a URL such as s3://bucket/lake."
            )
        if file := next((folder for folder in local.parents if folder.is_file()), None):
            raise SettingsError(
                f"The lake {root} lies in {file}, which is a file: set lake to a folder."
            )
    else:
        _reach(path, options)
    return path


def _refuse_credentials(root: str) -> None:
    """Refuse an address that holds a key: fsspec would take it for a part of the bucket's name, and print it."""
    user = _USER.match(root)
    if user and (":" in user[1] or root.startswith(("s3://", "s3a://"))):
        raise SettingsError(
            f"The lake {root} has a key in its address: take it out, and set lake_options, such as "
            '{key = "$LAKE_KEY", secret = "$LAKE_SECRET"}.'
        )


_USER = re.compile(r"\w+://([^/@]+)@")
"""What stands before the host of an address."""
_REACHED: set[tuple[str, str]] = set()
"""The buckets that this process has listed, with the options: asking once shows a wrong name, key or option."""


def _reach(path: UPath, options: Mapping[str, Any]) -> None:
    """List a bucket once per process, so that an error says what cannot be reached before anything is done.

    Raises:
        LakeError: the bucket does not exist, cannot be reached or refuses, or an option is unknown to its client.
    """
    name = (str(path), repr(sorted(options.items())))
    if name in _REACHED:
        return
    try:
        path.fs.ls(path.path, detail=False)
    except FileNotFoundError as error:
        if (
            error.__cause__ is not None
        ):  # the bucket itself is missing; else nothing was written into the lake yet
            raise LakeError(
                f"The lake {path} cannot be read ({first_line(error)}): make the bucket, or correct lake."
            ) from error
    except Exception as error:  # what clients raise is of no family
        raise LakeError(
            f"The lake {path} cannot be read ({first_line(error)}): correct lake or lake_options, or repeat later."
        ) from error
    _REACHED.add(name)


def resolved_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options with values of the environment in place of `$NAME`."""
    resolved: dict[str, Any] = {}
    for name, value in options.items():
        if isinstance(value, Mapping):
            resolved[name] = resolved_options(value)
        elif isinstance(value, str) and value.startswith("$"):
            if value[1:] not in os.environ:
                raise SettingsError(
                    f"The setting lake_options.{name} names the variable {value[1:]}, which is not set: set it."
                )
            resolved[name] = os.environ[value[1:]]
        else:
            resolved[name] = value
    return resolved
