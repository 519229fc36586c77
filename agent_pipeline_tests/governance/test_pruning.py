"""Pruning: what nothing names goes, and what a pointer, the history or another artifact names stays whole."""

import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from threading import Event, current_thread, main_thread
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner

from agent_pipeline.cli.app import app
from agent_pipeline.errors import DataError
from agent_pipeline.governance import pruning
from agent_pipeline.governance.pruning import Pruned, prune
from agent_pipeline.keys import PartitionKey
from agent_pipeline.promotion.champions import promote, rollback, unfit
from agent_pipeline.promotion.episodes_in_force import DecidingWorld
from agent_pipeline.sessions.session import hash_json
from agent_pipeline.storage.lake import Artifact, Lake
from agent_pipeline_tests.lakes import artifact

KEY, OTHER = PartitionKey("shop", "support"), PartitionKey("shop", "intern")


def made(
    lake: Lake,
    asset: str,
    name: str,
    *parents: Artifact,
    key: PartitionKey = KEY,
    latest: bool = True,
    passed: bool = True,
) -> Artifact:
    made_from, named = (
        {"adapter": parents[0].identity} if parents else {},
        [each.identity for each in parents],
    )
    files, identity = {"weights": name}, hash_json([asset, name])
    return artifact(
        lake,
        asset,
        key,
        made_from,
        files,
        identity=identity,
        latest=latest,
        parents=named,
        passed=passed,
    )


def night(lake: Lake, number: int, key: PartitionKey = KEY) -> Artifact:
    adapter = made(lake, "sft_adapter", f"{key} {number}", key=key)
    made(lake, "evaluation", f"{key} {number}", adapter, key=key)
    return made(lake, "gguf_export", f"{key} {number}", adapter, key=key)


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lake:
    monkeypatch.setenv("AGENT_PIPELINE_LAKE", str(tmp_path / "lake"))
    return Lake(str(tmp_path / "lake"))


def test_what_is_deleted_from_a_bucket_is_of_this_lake_whatever_its_name_matches(
    tmp_path: Path,
) -> None:
    lakes = [
        Lake(f"memory://prune-{tmp_path.name}/{name}", tmp_path / name) for name in ("a[b]", "ab")
    ]
    for lake in lakes:
        for number in range(3):
            night(lake, number)
    prune(lakes[0], keep=0, delete=True)
    assert [there(lake, "gguf_export") for lake in lakes] == [["2"], ["0", "1", "2"]]


def there(lake: Lake, asset: str, key: PartitionKey = KEY) -> list[str]:
    return sorted(
        (each.path / "weights").read_text(encoding="utf-8").rpartition(" ")[2]
        for each in lake.finished(asset, key)
    )


def test_what_a_kept_export_played_stays_and_goes_on_speaking_against_it(lake: Lake) -> None:
    for number in range(4):
        made_from = {"gguf_export": night(lake, number).identity, "world": "w:W"}
        artifact(
            lake,
            "episodes",
            KEY,
            made_from,
            {"weights": f"of {number}"},
            {"players": {}, "against": [f"{number} harms"]},
        )
        if number == 0:
            promote(lake, KEY)
    prune(lake, keep=0, delete=True)
    champion = lake.champion("gguf_export", KEY)
    assert (
        there(lake, "episodes") == ["0", "3"]
        and champion
        and unfit(lake, KEY, champion, DecidingWorld("w:W")) == ["0 harms"]
    )


@pytest.mark.parametrize("keep", [0, 20])
def test_harm_in_a_comparison(lake: Lake, keep: int) -> None:
    """A champion played again for a decision. After a rollback, its harm is still known."""
    first = night(lake, 0)
    promote(lake, KEY)
    second = night(lake, 1)
    promote(lake, KEY)
    for number, exported in ((1, first), (2, second)):
        played = artifact(
            lake,
            "episodes",
            KEY,
            {"gguf_export": exported.identity, "world": "w:W", "number": number},
            {"weights": ""},
            {"players": {}, "against": [f"{number} harms"]},
            latest=False,
        )
        artifact(lake, "champion", KEY, {"shown": [played.identity]}, {"page.html": ""})
    rollback(lake, KEY)
    prune(lake, keep=keep, delete=True)
    assert unfit(lake, KEY, first, DecidingWorld("w:W")) == ["1 harms"]


def test_champion_latest_and_the_last_of_the_history_stay_with_what_they_were_made_from(
    lake: Lake,
) -> None:
    for number in range(8):
        night(lake, number)
        if number in (0, 2):
            promote(lake, KEY)
    found = prune(lake, keep=2)
    assert not found.deleted and len(there(lake, "gguf_export")) == 8
    assert prune(lake, keep=2, delete=True).unnamed == found.unnamed
    # 2 is the champion, 7 the latest; 0 was the champion before, 5 and 6 are the last of the history.
    assert there(lake, "gguf_export") == there(lake, "sft_adapter") == ["0", "2", "5", "6", "7"]
    assert there(lake, "evaluation") == ["7"]
    assert {each.asset for each in found.unnamed} == {"gguf_export", "sft_adapter", "evaluation"}
    assert rollback(lake, KEY).champion == hash_json(["gguf_export", f"{KEY} 0"])
    assert prune(lake, keep=2, delete=True).kept > 0 and "2" in there(lake, "gguf_export")


def test_without_history_only_what_the_pointers_name_stays_and_what_failed_its_check_goes(
    lake: Lake,
) -> None:
    for number in range(4):
        night(lake, number)
    made(lake, "gguf_export", f"{KEY} failed", latest=False, passed=False)
    assert len(prune(lake, keep=0, delete=True).unnamed) == 3 * 3 + 1
    assert there(lake, "gguf_export") == ["3"]
    assert prune(lake, keep=0, delete=True).unnamed == []


def test_what_another_artifact_names_stays_however_long_the_chain(lake: Lake) -> None:
    imitates = made(lake, "sft_adapter", "imitates", latest=False)
    prefers = made(lake, "dpo_adapter", "prefers", imitates, latest=False)
    exported = made(lake, "gguf_export", "exported", prefers, latest=False)
    made(lake, "serving", "served", exported)
    made(lake, "sft_adapter", "of another night", latest=False)
    assert [each.asset for each in prune(lake, keep=0, delete=True).unnamed] == ["sft_adapter"]
    assert there(lake, "sft_adapter") == ["imitates"] and there(lake, "gguf_export") == ["exported"]


def test_another_partition_is_left_alone_and_so_is_one_that_a_run_works_on(lake: Lake) -> None:
    for number in range(3):
        night(lake, number)
        night(lake, number, OTHER)
    prune(lake, keep=0, key=KEY, delete=True)
    assert len(there(lake, "gguf_export", OTHER)) == 3
    with lake.run_of(OTHER), pytest.raises(DataError, match="run is working"):
        prune(lake, keep=0, key=OTHER, delete=True)
    assert len(there(lake, "gguf_export", OTHER)) == 3


def test_what_a_run_made_between_the_listing_and_the_lock_keeps_what_it_was_made_from(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    adapters = [made(lake, "sft_adapter", f"{KEY} {number}") for number in range(3)]
    run_of = Lake.run_of

    @contextmanager
    def after_another_run(lake: Lake, key: PartitionKey) -> Iterator[None]:
        made(
            lake, "gguf_export", "new", adapters[0]
        )  # of an adapter that is there already, and that nothing named
        with run_of(lake, key):
            yield

    monkeypatch.setattr(Lake, "run_of", after_another_run)
    assert [each.identity for each in prune(lake, keep=0, delete=True).unnamed] == [
        adapters[1].identity
    ]
    assert there(lake, "sft_adapter") == ["0", "2"] and there(lake, "gguf_export") == ["new"]


def test_a_promotion_amid_the_deletion_is_refused_or_keeps_the_export(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    exports, named, promoted = [night(lake, number) for number in range(3)], pruning._named, []
    verify, verified = Lake.verify, Event()

    def then_somebody_promotes(*given: Any) -> set[str]:
        stays = named(*given)
        if not promoted:
            promoted.append(pool.submit(promote, lake, KEY, exports[0].identity))
            assert verified.wait(300), "the export was there when it was to be promoted"
            with suppress(TimeoutError):
                promoted[0].result(timeout=0.5)
        return stays

    def then_tell(*given: Any) -> Any:
        artifact = verify(*given)
        if current_thread() is not main_thread():
            verified.set()
        return artifact

    with ThreadPoolExecutor(1) as pool, monkeypatch.context() as patched:
        patched.setattr(Lake, "verify", then_tell)
        # Only under the lock of the partition, when the names are read for the last time.
        patched.setattr(
            Lake,
            "run_of",
            lambda *_: patched.setattr(pruning, "_named", then_somebody_promotes) or nullcontext(),
        )
        prune(lake, keep=0, key=KEY, delete=True)
        with pytest.raises(DataError, match="deleted in the meantime"):
            promoted[0].result()
    assert lake.champion("gguf_export", KEY) is None
    promote(lake, KEY)


def test_what_a_killed_run_left_half_made_goes_after_a_week(lake: Lake) -> None:
    old, young = (lake.building("sft_adapter", KEY, name * 64) for name in "ab")
    for folder in (old, young):
        (folder / "checkpoint").write_text("half", encoding="utf-8")
    for path in (old / "checkpoint", old):
        os.utime(path, times=(time.time() - 8 * 86_400,) * 2)
    assert [each.identity for each in prune(lake, keep=0, key=OTHER, delete=True).unnamed] == []
    (left,) = prune(lake, keep=0, delete=True).unnamed
    assert (left.partition, left.asset, left.identity) == (
        str(KEY),
        "sft_adapter",
        old.name,
    ) and left.bytes >= 4
    assert not old.exists() and young.exists()


def test_the_command_shows_first_and_deletes_when_it_is_told_to(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        night(lake, number)
    monkeypatch.setenv("AGENT_PIPELINE_KEEP_EXPORTS", "1")
    shown = CliRunner().invoke(app, ["prune", "--json"])
    report = msgspec.json.decode(shown.stdout, type=Pruned)
    assert shown.exit_code == 0 and not report.deleted and len(there(lake, "gguf_export")) == 3
    assert [
        (each.partition, each.asset) for each in report.unnamed if each.asset == "gguf_export"
    ] == [(str(KEY), "gguf_export")]
    assert CliRunner().invoke(app, ["prune", str(KEY), "--keep", "0", "--delete"]).exit_code == 0
    assert there(lake, "gguf_export") == ["2"]
