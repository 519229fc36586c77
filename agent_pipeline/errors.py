"""Errors that a user can cause or fix. Each has one sentence and stores its facts as attributes.

The sentence of a `PipelineError` says what is wrong, where, and what to do. The Dagster layer turns
it into one `dg.Failure`, and the shell command into one line and exit code 1. A stack trace is for
bugs of the pipeline only. Errors that only one package raises and catches are defined in that
package.
"""

import errno
import os
import re
from collections.abc import Mapping
from typing import ClassVar

_CREDENTIALS = re.compile(r"(?<=://)[^\s/@'\"]+@")
"""Pattern of the user name and the password in an address."""
_QUERY_SECRET = re.compile(
    r"(?<=[?&])([\w-]*(?:key|token|secret|passw|sig)[\w-]*)=[^&\s'\"#]+", re.IGNORECASE
)
"""Pattern of an access key in the query of an address."""


def without_credentials(text: str) -> str:
    """Return a text in which addresses have no credentials.

    The user name, the password and the keys of every address become `***`.

    Example:
        >>> without_credentials("https://ana:secret@host/v1 is away")
        'https://***@host/v1 is away'
    """
    return _QUERY_SECRET.sub(r"\1=***", _CREDENTIALS.sub("***@", text))


class PipelineError(Exception):
    """An error with one sentence for the user. The sentence never shows the password in an address.

    Attributes:
        retryable: Whether the same step may succeed when it is tried again. None leaves it to the
            error's cause.
        setting: The setting to change, such as `sft_adapter.max_length`.
        asset: The asset that cannot be used or made.
        partition: The agent's partition.
        path: The file or folder that is wrong.
    """

    retryable: ClassVar[bool | None] = None

    def __init__(
        self,
        *arguments: object,
        setting: str | None = None,
        asset: str | None = None,
        partition: object = None,
        path: object = None,
    ) -> None:
        super().__init__(
            *(without_credentials(text) if isinstance(text, str) else text for text in arguments)
        )
        self.setting = setting
        self.asset = asset
        self.partition = None if partition is None else str(partition)
        self.path = None if path is None else without_credentials(str(path))


class SettingsError(PipelineError):
    """Raised if a setting is unknown, malformed or contradicts another setting."""

    retryable = False


class PartitionError(PipelineError):
    """Raised if a partition key is malformed, or no store contains the partition."""


class StoreError(PipelineError):
    """Raised if a session store is missing, unreadable, or not of the kind that its name says."""


class DataError(PipelineError):
    """Raised if the data lacks what was requested, such as rows, tasks or held-out turns."""


class DamageError(DataError):
    """Raised if a file in the lake is damaged or missing. `path` names the file."""

    def __init__(self, message: str, path: object) -> None:
        super().__init__(message, path=path)


class LakeError(DataError):
    """Raised if the lake cannot be accessed, or a newer version of the pipeline wrote it."""


class MissingError(DataError):
    """Raised if a table was never materialized."""


class NoSessionsError(DataError, ValueError):
    """Raised if no session passes all conditions."""


class ArgumentError(SettingsError, ValueError):
    """Raised if an argument of a function has a value that the function does not accept."""


class RedactionError(PipelineError):
    """Raised if private data cannot be searched for, so that nothing may be written."""


class ModelError(PipelineError):
    """Raised if a base model, its tokenizer or its chat template cannot be used."""


class WorkerError(PipelineError):
    """Raised if a heavy task reported an error for the user, or its process died."""


class PassingError(WorkerError):
    """Raised if a heavy task failed for a reason that may be gone at the next attempt."""

    retryable = True


class PrivateDataError(PipelineError):
    """Raised if something that would leave the lake contains private data.

    Attributes:
        kinds_by_file: The number of finds per kind, by the name of the file or text. It has no
            values.
    """

    def __init__(self, what: str, kinds_by_file: Mapping[str, Mapping[str, int]]) -> None:
        self.kinds_by_file = {name: dict(kinds) for name, kinds in kinds_by_file.items()}
        sentences = "; ".join(
            f"{name}: {counts_in_words(kinds)}" for name, kinds in sorted(kinds_by_file.items())
        )
        super().__init__(
            f"{what} contains private data ({sentences}), so it does not leave the lake: remove "
            "the data from its source, or allow the values with `redaction.allow`."
        )


def counts_in_words(kinds: Mapping[str, int]) -> str:
    """Return counts by kind as a phrase.

    Example:
        >>> counts_in_words({"PHONE": 1, "EMAIL": 2})
        '2 EMAIL, 1 PHONE'
    """
    return ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))


class ExportError(PipelineError):
    """Raised if an export step failed, or the exported model differs from the trained model."""


class InfrastructureError(PipelineError):
    """Raised if a service that an agent's run needs, such as an endpoint, is not available.

    The run then ends without a verdict.
    """


_CLIENT_ERRORS = {"HTTPClientError", "ConnectTimeout", "ReadTimeout", "TransportError"}
"""Classes of lost connections in botocore, httpx and requests, given by name so that none of the
packages is imported.
"""


_MADE_BY = {
    "canaries": "champion",
    "embeddings": "sft_coreset",
    "row_losses": "sft_coreset",
    "tape_proof": "episodes",
    "split_ledger": "sft_dataset",
    "sessions_seen": "sessions",
}
"""Assets that also make other tables and artifacts, which cannot be selected by name."""


def name_asset_to_select(name: str) -> str:
    """Return the name for `materialize --select` of the asset that makes a table or an artifact.

    Example:
        >>> name_asset_to_select("dpo_adapter")
        'adapter'
    """
    return "adapter" if name.endswith("_adapter") else _MADE_BY.get(name, name)


def is_retryable(error: BaseException) -> bool:
    """Return whether a failed step may succeed when it is tried again.

    A lost connection, a busy bucket or a killed process may pass. A wrong setting stays wrong.
    """
    cause: BaseException | None = error
    while cause:
        retryable: bool | None = getattr(cause, "retryable", None)
        if retryable is not None:
            return retryable
        if _is_lost_connection(cause) or getattr(cause, "errno", None) == errno.EBUSY:
            return True
        cause = cause.__cause__
    return False


def _is_lost_connection(error: BaseException) -> bool:
    if isinstance(error, ConnectionError | TimeoutError):
        return True
    names = {base.__name__ for base in type(error).__mro__}
    return not names.isdisjoint({*_CLIENT_ERRORS, "ConnectionError", "TimeoutError"})


def first_line(error: BaseException) -> str:
    """Return the first line of an exception's message, without its full stop.

    If the first line ends with a colon, the next line is added. If the text is empty, return the
    name of the exception's class. The result has at most 200 characters.
    """
    text = re.sub(r":\s*\n\s*", ": ", str(error).strip())
    return without_credentials((text.splitlines() or [type(error).__name__])[0][:200].rstrip("."))


LESS_MEMORY = (
    "set `gradient_checkpointing` to on, lower `max_length` (and `per_device_train_batch_size`, "
    "if you raised it), set `precision` to bfloat16, or choose a smaller `base_model` "
    "(docs/troubleshooting.md, Out of memory)"
)
"""Advice for a training run that is out of memory, with the cheapest advice first."""
_FULL = ("No space left on device", "PytorchStreamWriter failed", "unexpected pos")
"""Messages of safetensors and torch about a full disk. Their errors do not have an error number."""
_BUCKETS = ("botocore", "aiobotocore", "s3fs", "gcsfs", "google", "adlfs", "azure")
"""Packages whose errors mean that a bucket cannot be used. They are not imported here."""


def disk_sentence(error: BaseException) -> str | None:
    """Return a sentence about a disk or a bucket that cannot be used.

    Return None for any other error.
    """
    filename, number = getattr(error, "filename", None), getattr(error, "errno", None)
    where = f" at {filename}" if filename else ""
    if number in (errno.ENOSPC, errno.EDQUOT) or any(text in str(error) for text in _FULL):
        return (
            f"The disk is full{where}: free some space, or set AGENT_PIPELINE_LAKE to another "
            "disk. The last good version is not changed."
        )
    if number in (errno.EACCES, errno.EROFS, errno.EPERM):
        return (
            f"There is no permission to write{where}: set AGENT_PIPELINE_LAKE to a folder that "
            "this user can write to."
        )
    if number == errno.EIO:
        return (
            f"The disk has an error{where} (input/output error): check the disk, or set "
            "AGENT_PIPELINE_LAKE to another disk."
        )
    if number in (errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG):
        return (
            f"The path cannot be used{where} ({os.strerror(number)}): set AGENT_PIPELINE_LAKE to "
            "a folder that this user can write to."
        )
    cause: BaseException | None = error
    while cause:
        if type(cause).__module__.partition(".")[0] in _BUCKETS:
            return (
                f"The bucket cannot be used ({first_line(cause)}): correct `lake` and "
                "`lake_options`, or try again when the bucket can be reached."
            )
        cause = cause.__cause__ or cause.__context__
    return None
