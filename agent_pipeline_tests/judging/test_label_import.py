"""The import of a file of judgments."""

from pathlib import Path

import pytest

from agent_pipeline.errors import SettingsError
from agent_pipeline.judging.label_import import import_labels
from agent_pipeline.judging.labels import read_labels
from agent_pipeline.keys import PartitionKey

KEY = PartitionKey("shop", "support")
HEAD = "session_id,project,agent,judgment,reason\n"


def write(path: Path, *rows: str) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(HEAD + "".join(f"{row}\n" for row in rows), encoding="utf-8")
    return path


def test_imported_judgments_are_read_by_the_next_run(tmp_path: Path) -> None:
    file = write(tmp_path / "review.csv", "s1,shop,support,acceptable,ok", "s2,shop,support,,")
    imported = import_labels(file, KEY, tmp_path / "labels")
    assert imported.path == tmp_path / "labels" / "review.csv" and not imported.overridden
    assert (
        read_labels(tmp_path / "labels", KEY).by_id.keys() == {"s1"} == imported.labels.by_id.keys()
    )
    assert import_labels(file, KEY, tmp_path / "labels").path == imported.path, (
        "a repetition is safe"
    )


def test_a_judgment_that_a_later_file_overrides_is_named(tmp_path: Path) -> None:
    """Files are read in the order of their names, and the last judgment counts."""
    write(tmp_path / "labels" / "z.csv", "s1,shop,support,unacceptable,")
    file = write(tmp_path / "a.csv", "s1,shop,support,acceptable,", "s2,shop,support,acceptable,")
    imported = import_labels(file, KEY, tmp_path / "labels")
    assert imported.overridden == ("s1",) and "s1" in imported.describe_overridden()


@pytest.mark.parametrize("case", ["no judgment", "other agent", "no setting", "a file", "a name"])
def test_an_import_that_would_have_no_effect_is_refused(tmp_path: Path, case: str) -> None:
    row = "s1,shop,other,acceptable," if case == "other agent" else "s1,shop,support,acceptable,"
    file = write(tmp_path / "a.csv", "s1,shop,support,," if case == "no judgment" else row)
    labels: Path | None = tmp_path / "labels"
    if case == "no setting":
        labels = None
    elif case == "a file":
        labels = write(tmp_path / "labels.csv", row)
    elif case == "a name":
        write(tmp_path / "labels" / "a.csv", "s9,shop,support,acceptable,")
    with pytest.raises(SettingsError):
        import_labels(file, KEY, labels)
    if case == "a name":
        assert read_labels(tmp_path / "labels", KEY).by_id.keys() == {"s9"}
