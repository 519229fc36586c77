"""The import of a file of judgments into the folder of the setting `labels`."""

import shutil
from dataclasses import dataclass
from pathlib import Path

from agent_pipeline.errors import SettingsError
from agent_pipeline.judging.labels import Labels, read_labels
from agent_pipeline.keys import PartitionKey


@dataclass(frozen=True)
class ImportedLabels:
    """The result of importing a file of judgments.

    Attributes:
        path: The file in the folder of labels.
        labels: The judgments of the file.
        overridden: The ids of sessions for which another file of the folder has a later judgment
            that differs.
    """

    path: Path
    labels: Labels
    overridden: tuple[str, ...] = ()

    def describe_overridden(self) -> str:
        """Return a sentence about judgments that another file overrides, or an empty text."""
        if not self.overridden:
            return ""
        return (
            f"Another file of {self.path.parent} is read later and has different judgments of "
            f"{', '.join(self.overridden[:5])} ({len(self.overridden)} in all): the last file in "
            "the order of names counts."
        )


def import_labels(file: Path, key: PartitionKey, target: Path | None) -> ImportedLabels:
    """Copy a file of judgments into the folder of labels.

    Args:
        file: The CSV or JSONL file.
        key: The agent that the judgments are about.
        target: The path of the setting `labels`, or None if it is not set.

    Raises:
        SettingsError: The file has no judgments of the agent, or is not a file of labels; the
            setting `labels` does not name a folder; or the folder has another file of this name.
    """
    labels = read_labels(file, key)
    if not labels.by_id:
        notes = f" ({' '.join(labels.notes)})" if labels.notes else ""
        raise SettingsError(
            f"{file} has no judgments of {key}{notes}: fill in the column `judgment` with "
            "acceptable or unacceptable.",
            path=file,
        )
    if target is None:
        raise SettingsError(
            "No folder of labels is set, so a run would not read the judgments: add "
            '`labels = "labels"` at the top of pipeline.toml, and import the file again.',
            setting="labels",
        )
    if target.is_file():
        raise SettingsError(
            f"The setting `labels` names the file {target}, so a second file cannot be added: set "
            "`labels` to a folder, and move the file into the folder.",
            setting="labels",
            path=target,
        )
    copy = target / file.name
    if copy.exists() and not copy.samefile(file) and copy.read_bytes() != file.read_bytes():
        raise SettingsError(
            f"{copy} already exists with different judgments: rename {file}.", path=copy
        )
    target.mkdir(parents=True, exist_ok=True)
    if not copy.exists():
        shutil.copyfile(file, copy)
    effective = read_labels(target, key).by_id
    overridden = [
        session_id
        for session_id, label in labels.by_id.items()
        if effective[session_id].judgment != label.judgment
    ]
    return ImportedLabels(copy, labels, tuple(overridden))
