"""The root of a lake: a folder or a bucket.

This module opens the root, and reports problems with it. Reading and writing files does not belong
here.
"""

import os
import re
from collections.abc import Mapping
from pathlib import Path

from upath import UPath

from agent_pipeline.errors import LakeError, SettingsError, first_line

LOCAL = ("", "file", "local")
"""URL protocols that mean a folder on this machine."""
_USER_IN_ADDRESS = re.compile(r"\w+://([^/@]+)@")
_LISTED: set[tuple[str, str]] = set()
"""Buckets that this process has listed, with their options. Listing a bucket once reveals a wrong
name, key or option.
"""


def open_root(root: str | UPath, options: Mapping[str, object]) -> UPath:
    """Open the root of a lake, and check that it can be read.

    Args:
        root: a folder, or a URL for fsspec.
        options: options for fsspec, with their values.

    Raises:
        SettingsError: the root is a file, lies in a file, has a key in its address, or its protocol
            is unknown or needs a package that is missing.
        LakeError: the bucket cannot be read.
    """
    _refuse_credentials(str(root))
    try:
        # Other machines write too, so no listing may be cached between calls.
        fresh = {"use_listings_cache": False} if "://" in str(root) else {}
        path = UPath(root, **(fresh | dict(options)))
        protocol, _ = path.protocol, path.fs
    except ImportError as error:
        raise SettingsError(
            f"The lake {root} cannot be opened, because a package is missing ({error}): install "
            "the package."
        ) from error
    except ValueError as error:
        raise SettingsError(
            f"The lake {root} cannot be opened ({error}): set `lake` to a folder, or to a URL "
            "such as s3://bucket/lake."
        ) from error
    if protocol in LOCAL:
        _refuse_files(Path(path.path), root)
    else:
        _list_once(path, options)
    return path


def _refuse_files(folder: Path, root: str | UPath) -> None:
    """Raise an error if the root is a file, or is inside a file."""
    if folder.is_file():
        raise SettingsError(
            f"The lake {root} is a file: set `lake` to a folder, or to a URL such as "
            "s3://bucket/lake."
        )
    for parent in folder.parents:
        if parent.is_file():
            raise SettingsError(
                f"The lake {root} lies in {parent}, which is a file: set `lake` to a folder."
            )


def _refuse_credentials(root: str) -> None:
    """Raise an error if an address contains an access key.

    `fsspec` would treat the key as part of the bucket's name, and print it.
    """
    user = _USER_IN_ADDRESS.match(root)
    if user and (":" in user[1] or root.startswith(("s3://", "s3a://"))):
        raise SettingsError(
            f"The address of the lake {root} contains a key: remove the key from the address, and "
            "set `lake_options`, for example "
            '{key = "$LAKE_KEY", secret = "$LAKE_SECRET"}.'
        )


def _list_once(path: UPath, options: Mapping[str, object]) -> None:
    """List a bucket once per process.

    If the bucket cannot be read, the error appears before any work is done.

    Raises:
        LakeError: the bucket does not exist, cannot be reached or refuses, or its client does not
            know an option.
    """
    name = (str(path), repr(sorted(options.items())))
    if name in _LISTED:
        return
    try:
        path.fs.ls(path.path, detail=False)
    except FileNotFoundError as error:
        bucket_is_missing = error.__cause__ is not None  # otherwise, the lake has no files yet
        if bucket_is_missing:
            raise LakeError(
                f"The lake {path} cannot be read ({first_line(error)}): create the bucket, or "
                "correct the setting `lake`."
            ) from error
    except Exception as error:  # the errors of different clients have no common class
        raise LakeError(
            f"The lake {path} cannot be read ({first_line(error)}): correct the settings `lake` "
            "or `lake_options`, or repeat later."
        ) from error
    _LISTED.add(name)


def resolve_options(options: Mapping[str, object]) -> dict[str, object]:
    """Return options in which `$NAME` is replaced by the value of the environment variable.

    Raises:
        SettingsError: a variable is not set.
    """
    resolved: dict[str, object] = {}
    for name, value in options.items():
        if isinstance(value, Mapping):
            resolved[name] = resolve_options(value)
        elif isinstance(value, str) and value.startswith("$"):
            if value[1:] not in os.environ:
                raise SettingsError(
                    f"The setting `lake_options.{name}` names the environment variable "
                    f"{value[1:]}, which is not set: set this variable."
                )
            resolved[name] = os.environ[value[1:]]
        else:
            resolved[name] = value
    return resolved
