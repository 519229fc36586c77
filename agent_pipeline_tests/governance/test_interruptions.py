"""Prune and forget, killed at every point and then repeated: the lake is as if nothing had been killed."""

import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from upath import UPath

from agent_pipeline.errors import DamageError
from agent_pipeline.governance.forgetting import forget
from agent_pipeline.governance.lineage import models_of
from agent_pipeline.governance.pruning import UNFINISHED_DAYS, prune
from agent_pipeline.governance.scanning import scan
from agent_pipeline.ingestion.block_list import make_alias
from agent_pipeline.judging.llm_client import AnswerCache
from agent_pipeline.keys import PartitionKey
from agent_pipeline.promotion.champions import (
    complete_move,
    promote,
    rollback,
    serve_champion,
    serving_difference,
)
from agent_pipeline.promotion.episodes_in_force import NO_WORLD, find_last_episodes
from agent_pipeline.promotion.ledger import EXPORT
from agent_pipeline.storage.filesystem import is_staged
from agent_pipeline.storage.lake import MANIFEST, Artifact, Lake, read_manifest
from agent_pipeline.training.chain import find_trained_adapters
from agent_pipeline_tests.governance.test_lineage import (
    KEY,
    MARK,
    conversation,
    make_lake,
)
from agent_pipeline_tests.interruptions import STEP, kill_points, run_killed, tree
from agent_pipeline_tests.lakes import artifact

OTHER = PartitionKey("shop", "intern")


def add_night(lake: Lake, key: PartitionKey, name: str) -> Artifact:
    """An adapter, its export, and the episodes that the export played."""
    base = {"base_model": "b", "base_revision": "1", "name": name}
    files = {"adapter_config.json": "{}", "adapter_model.safetensors": name}
    adapter = artifact(lake, "sft_adapter", key, base, files)
    report = {"ollama": {"gguf": "model-f16.gguf", "num_ctx": 2048}}
    files = {"Modelfile": "FROM ./model-f16.gguf\n", "model-f16.gguf": name}
    origin = {"adapter": adapter.identity}
    export = artifact(lake, EXPORT, key, origin, files, report, parents=[adapter.identity])
    played = {"gguf_export": export.identity}
    against = {"players": {}, "against": [f"{name} harms"]}
    parents = [export.identity]
    artifact(lake, "episodes", key, played, {"episodes.jsonl": name}, against, parents=parents)
    return export


def make_pruned_lake(root: Path | UPath, cache: Path) -> Lake:
    """A lake with five exports in each of two partitions, and the folder of a killed run. The second export of the first partition is the
    champion, and was the successor of the first."""
    lake = Lake(root, cache)
    for key in (KEY, OTHER):
        for name in ("first", "second", "third", "fourth", "fifth"):
            export = add_night(lake, key, name)
            if key == KEY and name in ("first", "second"):
                promote(lake, key, export.identity)
                serve_champion(lake, key)
                complete_move(lake, key)
        unfinished = lake.building("sft_adapter", key, "f" * 64)
        (unfinished / "checkpoint").mkdir(exist_ok=True)
        (unfinished / "checkpoint" / "weights").write_text("half", encoding="utf-8")
        (unfinished / MANIFEST).write_text("{}", encoding="utf-8")
        old = time.time() - (UNFINISHED_DAYS + 1) * 86_400
        for path in (unfinished, *unfinished.rglob("*")):
            os.utime(path, (old, old))
    return lake


def check_exports(lake: Lake) -> None:
    """Check that every export that can be promoted has its adapter and its episodes, and that the champion is served."""
    for key in (KEY, OTHER):
        for export in lake.finished(EXPORT, key):
            lake.verify(export)
            (adapter,) = find_trained_adapters(lake, key, export.manifest["made_from"]["adapter"])
            lake.verify(adapter)
            assert find_last_episodes(lake, key, export.identity, NO_WORLD).played
    champion = lake.champion(EXPORT, KEY)
    assert champion and not serving_difference(lake, KEY)
    assert lake.history(EXPORT, KEY)[-1] == lake.pointers(EXPORT, KEY)


class Copies:
    """Copies of a folder, one after the other at the path of the folder, which its files may name."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._template = folder, folder.with_name(f"{folder.name}-template")
        shutil.copytree(folder, self._template)

    def renew(self) -> None:
        """Put a new copy at the path of the folder."""
        shutil.rmtree(self.folder)
        shutil.copytree(self._template, self.folder)


@pytest.mark.slow
def test_prune_killed_at_every_point(tmp_path: Path) -> None:
    """A killed prune left folders without a manifest, which no later prune deleted, and half of a checkpoint to resume from."""
    lake = make_pruned_lake(tmp_path / "lake", tmp_path / "cache")
    copies = Copies(tmp_path / "lake")
    assert len(prune(lake, keep=1, delete=True).unnamed) == (1 + 3) * 3 + 1 + 2
    undisturbed = tree(copies.folder)
    points = 0
    for event_number in kill_points():
        copies.renew()
        if not run_killed(lambda: prune(lake, keep=1, delete=True), event_number):
            break
        points += 1
        check_exports(lake)
        prune(lake, keep=1, delete=True)
        assert tree(copies.folder) == undisturbed, event_number
        assert prune(lake, keep=1).unnamed == []
        check_exports(lake)
    assert points > 60 // STEP, "the command was killed at its points"
    rolled_back = rollback(lake, KEY)
    assert lake.champion(EXPORT, KEY).identity == rolled_back.champion


class Killed(BaseException):
    """What a patched function raises in place of a kill."""


@pytest.fixture
def kill_at_write(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], Any], int], bool]:
    """Run a command that is ended at its n-th write to a bucket in memory. Return whether it was ended."""

    def run(command: Callable[[], Any], write_number: int) -> bool:
        left = [write_number]

        def counted(method: Callable[..., Any]) -> Callable[..., Any]:
            def count(*arguments: Any, **options: Any) -> Any:
                left[0] -= 1
                if left[0] == 0:
                    raise Killed
                return method(*arguments, **options)

            return count

        memory = type(Lake("memory://kills").root.fs)
        with monkeypatch.context() as patched:
            for name in ("rm_file", "put_file", "pipe_file"):
                patched.setattr(memory, name, counted(getattr(memory, name)))
            patched.setattr(shutil, "rmtree", counted(shutil.rmtree))
            try:
                command()
            except Killed:
                return True
        return False

    return run


def objects(lake: Lake) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in lake.fs.files(lake.root)}


@pytest.mark.slow
def test_prune_of_a_bucket_killed_at_every_write(
    tmp_path: Path, kill_at_write: Callable[[Callable[[], Any], int], bool]
) -> None:
    def make(name: str) -> Lake:
        lake = Lake(f"memory://{uuid4().hex}/lake", tmp_path / name)
        for export in ("first", "second", "third"):
            add_night(lake, KEY, export)
        return lake

    undisturbed = make("undisturbed")
    prune(undisturbed, keep=0, delete=True)
    points = 0
    for write_number in kill_points():
        lake = make(str(write_number))
        if not kill_at_write(lambda lake=lake: prune(lake, keep=0, delete=True), write_number):
            break
        points += 1
        prune(lake, keep=0, delete=True)
        assert len(objects(lake)) == len(objects(undisturbed)), write_number
        assert not list(lake.find_deletions())
        copies = [path.name for path in lake.fs.cache.rglob("*") if path.is_file()]
        assert copies.count(MANIFEST) == 3, "of the latest adapter, export and episodes"
        latest = lake.latest(EXPORT, KEY).identity
        assert find_last_episodes(lake, KEY, latest, NO_WORLD).played
    assert points > 30 // STEP, "the command was ended at its writes"


def test_prune_completes_a_killed_replacement(tmp_path: Path) -> None:
    """A run that made an artifact again was killed between the two renames: the copy that was set aside is not all that is left."""
    lake = Lake(tmp_path / "lake", tmp_path / "cache")
    export = add_night(lake, KEY, "first")
    building = lake.building(EXPORT, KEY, export.identity)
    shutil.copytree(export.path, building, dirs_exist_ok=True)
    export.path.rename(export.path.with_name(f".deleting-{export.path.name}"))
    prune(lake, keep=0, delete=True)
    assert lake.latest(EXPORT, KEY) == lake.verify(export) and not building.exists()


def damage(path: Path, how: str) -> None:
    """Damage or remove a manifest."""
    if how == "missing":
        path.unlink()
    elif how == "cut off":
        path.write_bytes(path.read_bytes()[:-100])
    else:
        path.write_bytes(path.read_bytes().replace(b'"parents"', b'"parentz"'))


@pytest.mark.parametrize("how", ["missing", "cut off", "changed"])
def test_prune_with_a_damaged_manifest(tmp_path: Path, how: str) -> None:
    """The adapter of a champion was deleted if the manifest of the export could not be read."""
    lake = make_pruned_lake(tmp_path / "lake", tmp_path / "cache")
    champion = lake.champion(EXPORT, KEY)
    damage(champion.path / MANIFEST, how)
    before = tree(tmp_path / "lake" / "models" / EXPORT)
    with pytest.raises(DamageError) as error:
        prune(lake, keep=0, key=KEY, delete=True)
    assert error.value.path == str(champion.path / MANIFEST)
    assert tree(tmp_path / "lake" / "models" / EXPORT) == before


@pytest.mark.parametrize("how", ["missing", "cut off", "changed"])
def test_prune_of_an_artifact_with_a_damaged_manifest(tmp_path: Path, how: str) -> None:
    """Nothing names the artifact, so that it is deleted like the others."""
    lake = make_pruned_lake(tmp_path / "lake", tmp_path / "cache")
    expected = [each.identity[:16] for each in prune(lake, keep=1, key=KEY).unnamed]
    (third,) = [
        each
        for each in lake.finished(EXPORT, KEY)
        if "third" in (each.path / "model-f16.gguf").read_text()
    ]
    damage(third.path / MANIFEST, how)
    found = prune(lake, keep=1, key=KEY, delete=True).unnamed
    assert sorted(each.identity[:16] for each in found) == sorted(expected)
    assert not third.path.exists() and prune(lake, keep=1, key=KEY).unnamed == []
    check_exports(lake)


def test_prune_with_exchanged_manifests(tmp_path: Path) -> None:
    """The folder of the champion was deleted if its manifest and that of an export that nothing names were exchanged."""
    lake = make_pruned_lake(tmp_path / "lake", tmp_path / "cache")
    champion = lake.champion(EXPORT, KEY).path / MANIFEST
    (third,) = [
        each
        for each in lake.finished(EXPORT, KEY)
        if "third" in (each.path / "model-f16.gguf").read_text()
    ]
    other = third.path / MANIFEST
    first, second = champion.read_bytes(), other.read_bytes()
    champion.write_bytes(second), other.write_bytes(first)
    with pytest.raises(DamageError):
        prune(lake, keep=0, key=KEY, delete=True)
    assert len(list(champion.parent.iterdir())) == len(list(other.parent.iterdir())) == 3


FEW_SESSIONS = [
    conversation("plain", "said plainly", task="one"),
    conversation("gone", MARK),
    conversation("bad", "said badly", good=False, task="one"),
    conversation("child", "said by its child", parent="gone"),
    conversation("twin", MARK, task="one"),
]


def make_forgetting_lake(folder: Path) -> tuple[Lake, Path]:
    """A lake with a session `gone`, what a run made of it and what a killed run left; and a judge's cache with an answer on it."""
    lake = make_lake(folder, FEW_SESSIONS)
    unfinished = lake.building("sft_adapter", KEY, "f" * 64)
    (unfinished / "checkpoint").mkdir()
    (unfinished / "checkpoint" / "rows.json").write_text(MARK, encoding="utf-8")
    begun = {"identity": "f" * 64, "partition": str(KEY), "made_from": {"sessions": ["gone"]}}
    (unfinished / MANIFEST).write_text(json.dumps(begun), encoding="utf-8")
    cache = folder / "judge.sqlite"
    answers = AnswerCache(cache)
    answers.put("1", f"It said: {MARK}", make_alias("gone"))
    answers.close()
    return lake, cache


@pytest.mark.slow
def test_forget_killed_at_every_point(tmp_path: Path) -> None:
    lake, judge = make_forgetting_lake(tmp_path / "made")
    copies = Copies(tmp_path / "made")
    forget(lake, "gone", judge_cache=judge)
    undisturbed = tree(copies.folder / "lake")
    points = 0
    for event_number in kill_points():
        copies.renew()
        if not run_killed(lambda: forget(lake, "gone", judge_cache=judge), event_number):
            break
        points += 1
        for asset in ("sft_dataset", "curated_sessions"):
            lake.open(asset, KEY).close()
        forget(lake, "gone", judge_cache=judge)
        assert tree(copies.folder / "lake") == undisturbed, event_number
        assert not [path for path in copies.folder.rglob("*") if is_staged(path.name)]
        assert scan(lake, ['"gone"']) == {}
        assert not any(MARK.encode() in path.read_bytes() for path in tmp_path.glob("made/judge*"))
        for asset in ("sft_adapter", "evaluation", EXPORT):
            lake.verify(lake.latest(asset, KEY))
    assert points > 60 // STEP, "the command was killed at its points"


def test_forget_after_a_killed_prune(tmp_path: Path) -> None:
    """The folder of an artifact whose deletion was killed held the words of a session that was forgotten afterwards."""
    lake, _ = make_forgetting_lake(tmp_path)
    evaluation = lake.latest("evaluation", KEY)
    (evaluation.path / "samples.json").write_text(json.dumps([{"expected": MARK}]))
    lake.start_deletion(UPath(evaluation.path))
    forget(lake, "twin")
    forget(lake, "gone")
    assert scan(lake, [MARK]) == {}
    assert not list(lake.find_deletions())


@pytest.mark.parametrize("how", ["missing", "cut off", "changed"])
def test_forget_with_a_damaged_manifest(tmp_path: Path, how: str) -> None:
    """An artifact whose manifest could not be read kept the words of a session that was forgotten."""
    lake, _ = make_forgetting_lake(tmp_path)
    evaluation = lake.latest("evaluation", KEY)
    damage(evaluation.path / MANIFEST, how)
    before = tree(tmp_path / "lake" / "tables")
    with pytest.raises(DamageError) as error:
        forget(lake, "gone")
    assert error.value.path == str(evaluation.path / MANIFEST)
    assert tree(tmp_path / "lake" / "tables") == before
    shutil.rmtree(evaluation.path)
    forget(lake, "gone")
    assert scan(lake, ['"gone"']) == {}


@pytest.mark.parametrize("how", ["cut off", "changed"])
def test_forget_does_not_make_damage_look_sound(tmp_path: Path, how: str) -> None:
    """The manifest got the checksum of a damaged file, of which the session had been removed."""
    lake, _ = make_forgetting_lake(tmp_path)
    artifacts = [lake.find(use.asset, KEY, use.identity) for use in models_of(lake, "gone")]
    damaged = []
    for made in artifacts:
        for name in made.manifest["files"]:
            path = made.path / name
            if name.endswith(".json"):
                content = path.read_bytes()
                path.write_bytes(
                    content[:-2] if how == "cut off" else content.replace(b"on", b"om")
                )
                damaged += [made] if path.read_bytes() != content else []
    assert damaged
    forget(lake, "gone")
    for made in damaged:
        with pytest.raises(DamageError):
            lake.find_undamaged(made.asset, KEY, made.identity)
            lake.verify(
                Artifact(
                    made.asset,
                    KEY,
                    made.identity,
                    made.path,
                    read_manifest(UPath(made.path / MANIFEST)),
                )
            )


def test_forget_in_one_partition_keeps_the_unfinished_run_of_another(tmp_path: Path) -> None:
    """A folder whose manifest a killed deletion had removed was deleted in every partition."""
    lake, _ = make_forgetting_lake(tmp_path)
    others = lake.building("sft_adapter", OTHER, "e" * 64)
    (others / "checkpoint").write_text("half", encoding="utf-8")
    forget(lake, "gone", KEY)
    assert [path.name for path in lake.unfinished()] == [others.name]


@pytest.mark.slow
def test_forget_in_a_bucket_killed_at_every_write(
    tmp_path: Path, kill_at_write: Callable[[Callable[[], Any], int], bool]
) -> None:
    """The copy of an artifact on this machine stayed if the command was killed after the last file of the artifact was replaced."""
    local, _ = make_forgetting_lake(tmp_path / "made")
    points = 0
    for write_number in kill_points():
        root = UPath(f"memory://{uuid4().hex}/lake")
        for path in Path(local.root.path).rglob("*"):
            if path.is_file() and not path.name.startswith(".") and ".building" not in str(path):
                (root / path.relative_to(local.root.path).as_posix()).write_bytes(path.read_bytes())
        lake = Lake(root, tmp_path / str(write_number))
        lake.latest("evaluation", KEY)
        if not kill_at_write(lambda lake=lake: forget(lake, "gone"), write_number):
            break
        points += 1
        forget(lake, "gone")
        assert scan(lake, ['"gone"']) == {}, write_number
        copied = [path for path in lake.fs.cache.rglob("*") if path.is_file()]
        assert not any(b'"gone"' in path.read_bytes() for path in copied), write_number
        assert lake.verify(lake.latest("evaluation", KEY))
    assert points > 20 // STEP, "the command was ended at its writes"
