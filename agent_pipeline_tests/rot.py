"""A lake of which single files are damaged, for the tests and for `python -m benchmarks.flips`."""

import json
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from agent_pipeline.compute.params import ArtifactReference, TaskParams
from agent_pipeline.errors import PipelineError
from agent_pipeline.export.gguf_export import ADAPTER, base_gguf_file
from agent_pipeline.export.serving_folder import base_folder, serving_root
from agent_pipeline.governance.lineage import models_of
from agent_pipeline.governance.pruning import prune
from agent_pipeline.keys import PartitionKey
from agent_pipeline.promotion.champions import (
    complete_move,
    promote,
    serve_champion,
    serving_difference,
    unfit,
)
from agent_pipeline.promotion.decision import Decision, DecisionReason, ReasonKind
from agent_pipeline.promotion.decision_facts import collect_facts_since
from agent_pipeline.promotion.episodes_in_force import DecidingWorld, find_last_episodes
from agent_pipeline.promotion.ledger import EXPORT, LedgerEntry, open_completed_moves, open_ledger
from agent_pipeline.promotion.probation import find_self_promotion
from agent_pipeline.promotion.stored_scores import read_samples, read_transcripts
from agent_pipeline.storage.filesystem import write_checksum
from agent_pipeline.storage.lake import MANIFEST, Artifact, Lake
from agent_pipeline_tests.lakes import artifact
from agent_pipeline_tests.task_params import task_values

KEY, OTHER = PartitionKey("shop", "support"), PartitionKey("shop", "intern")
FOLDER = "[0-9a-f]" * 16
"""A pattern of the names of artifacts' directories."""
NIGHTS = ("first", "second", "third")


class World:
    """A lake with three exports of one partition, and one of another. The champion is the second export, and is served over the base that
    all adapters share; the champion of the other partition is a merged model."""

    def __init__(self, folder: Path) -> None:
        self.lake = Lake(folder / "lake", folder / "cache")
        self.folder = folder
        base_folder(self.lake).mkdir(parents=True)
        for revision in ("1", "2"):
            base = base_gguf_file(base_folder(self.lake), "base", revision)
            base.write_bytes(random.Random(revision).randbytes(2000))
            write_checksum(base)
        self.exports = [self._add_night(KEY, name, ADAPTER) for name in NIGHTS]
        self.other = self._add_night(OTHER, "other", "model-f16.gguf")
        for export in self.exports[:2]:
            self._decide(export)
            promote(self.lake, KEY, export.identity)
            complete_move(self.lake, KEY)
        promote(self.lake, OTHER, self.other.identity)
        self._decide(self.other, OTHER)
        complete_move(self.lake, OTHER)
        schema = pa.schema([("session_id", pa.string()), ("use", pa.string())])
        table = pa.table({"session_id": ["s1", "s2", "s3"], "use": ["positive"] * 3}, schema=schema)
        self.lake.stage("curated_sessions", KEY, table.to_batches(), schema).commit()
        self.lake.prepare()
        for key in (KEY, OTHER):
            serve_champion(self.lake, key)
        self._snapshot = self._read()

    def _add_night(self, key: PartitionKey, name: str, served: str) -> Artifact:
        """An adapter, its evaluation, its export, and the episodes that the export played."""
        chance = random.Random(name)
        trained = {
            "base_model": "base",
            "base_revision": "1",
            "name": name,
            "sessions": ["s1", name],
        }
        files: dict[str, str | bytes] = {
            "adapter_config.json": json.dumps({"r": 4, "name": name}),
            "adapter_model.safetensors": chance.randbytes(3000),
            "chat_template.jinja": f"template of {name}",
        }
        adapter = artifact(self.lake, "sft_adapter", key, trained, files)
        samples = [{"row_id": str(number), "right": chance.random() < 0.5} for number in range(20)]
        measured = {"adapter": adapter.identity, "sessions": ["s9"]}
        scored: dict[str, str | bytes] = {"samples.json": json.dumps(samples, indent=1)}
        artifact(self.lake, "evaluation", key, measured, scored)
        files = {
            "Modelfile": "FROM ./model-f16.gguf\nPARAMETER num_ctx 2048\n",
            "model-f16.gguf": chance.randbytes(3000),
            ADAPTER: chance.randbytes(1000),
        }
        report = {"ollama": {"gguf": served, "num_ctx": 2048}}
        origin = {"adapter": adapter.identity}
        parents = [adapter.identity]
        export = artifact(self.lake, EXPORT, key, origin, files, report, parents=parents)
        episodes = [
            {"task_key": str(number), "harm": chance.random() < 0.1} for number in range(20)
        ]
        lines: dict[str, str | bytes] = {
            "episodes.jsonl": "".join(f"{json.dumps(episode)}\n" for episode in episodes)
        }
        against = {"players": {}, "against": [f"{name} harms"]}
        played = {EXPORT: export.identity}
        parents = [export.identity]
        artifact(self.lake, "episodes", key, played, lines, against, parents=parents)
        return export

    def _decide(self, export: Artifact, key: PartitionKey = KEY) -> None:
        """Write the decision that promotes an export into the ledger."""
        decision = Decision(
            outcome="promote",
            p_value=0.001,
            allowed_error=0.01,
            more_tasks=0,
            figures=(),
            reasons=(DecisionReason(ReasonKind.GAIN, "select", "promote"),),
        )

        def record(number: int) -> LedgerEntry:
            champion = self.lake.pointers(EXPORT, key).champion
            return LedgerEntry(
                number=number,
                when="2026-11-01T00:00:00+00:00",
                who="root",
                candidate=export.identity,
                champion=champion,
                evaluator="e" * 64,
                decision=decision,
            )

        open_ledger(self.lake, key).append(record)

    def _read(self) -> dict[Path, bytes]:
        """Read every file but the locks."""
        paths = (path for path in self.folder.rglob("*") if path.is_file())
        return {path: path.read_bytes() for path in paths if not path.name.endswith(".lock")}

    def restore(self) -> None:
        """Put every file back to what it was when the world was made."""
        now = self._read()
        for path in now.keys() - self._snapshot.keys():
            path.unlink()
        for path, content in self._snapshot.items():
            if now.get(path) != content:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)


def find_files(world: World) -> dict[str, list[Path]]:
    """Return the files of the world by their kind."""
    root, cache = Path(world.lake.root.path), base_folder(world.lake)

    def files_of(*patterns: str) -> list[Path]:
        found = [path for pattern in patterns for path in sorted(root.glob(pattern))]
        return [
            path
            for path in found
            if path.is_file() and path.name != MANIFEST and not path.name.endswith(".lock")
        ]

    return {
        "model": files_of(f"models/sft_adapter/*/*/{FOLDER}/*"),
        "export": files_of(f"models/{EXPORT}/*/*/{FOLDER}/*"),
        "evaluation and episodes": files_of(
            f"models/evaluation/*/*/{FOLDER}/*", f"models/episodes/*/*/{FOLDER}/*"
        ),
        "manifest": sorted(root.glob(f"models/*/*/*/*/{MANIFEST}")),
        "pointer": files_of("models/*/*/*/pointers/*"),
        "decision": files_of(f"models/{EXPORT}/*/*/decisions/*"),
        "completed move": files_of(f"models/{EXPORT}/*/*/completed_moves/*"),
        "served file": [
            path for path in sorted(serving_root(world.lake).rglob("*")) if path.is_file()
        ],
        "shared base": [
            path for path in sorted(cache.iterdir()) if not path.name.endswith(".lock")
        ],
        "table": files_of("tables/*/*/*/*"),
        "version of the lake": [root / "lake.json"],
    }


def _promote(world: World) -> Any:
    """Promote every export but the champion, and the champion again."""
    return [promote(world.lake, KEY, export.identity).champion for export in world.exports]


def _serve(world: World) -> Any:
    for key in (KEY, OTHER):
        serve_champion(world.lake, key)
    return {str(path): path.read_bytes() for path in find_files(world)["served file"]}


def _look_at_what_is_served(world: World) -> Any:
    differences = [serving_difference(world.lake, key) for key in (KEY, OTHER)]
    if any(differences):
        raise Noticed(" ".join(differences))
    return {str(path): path.read_bytes() for path in find_files(world)["served file"]}


def _use_in_a_worker(world: World) -> Any:
    """Read the files of the artifacts from which a worker trains further, exports and plays."""
    params = TaskParams(**task_values(world.lake.root, KEY, world.lake.fs.cache))
    used = []
    for export in world.exports:
        adapter = {"asset": "sft_adapter", "identity": export.manifest["made_from"]["adapter"]}
        for reference in (adapter, export.reference):
            found = params.find_artifact(ArtifactReference(**reference))
            used.append(
                {name: (found.path / name).read_bytes() for name in found.manifest["files"]}
            )
    return used


def _find_played(lake: Lake, export: Artifact) -> Artifact | None:
    return find_last_episodes(lake, KEY, export.identity, DecidingWorld("w:W")).played


def _decide(world: World) -> Any:
    """Read all that a decision on the third export reads."""
    lake = world.lake
    evaluation = lake.latest("evaluation", KEY)
    champion = lake.champion(EXPORT, KEY)
    return (
        read_samples(evaluation),
        [read_transcripts(_find_played(lake, export)) for export in world.exports],
        [unfit(lake, KEY, export, DecidingWorld("w:W")) for export in world.exports],
        open_ledger(lake, KEY).records(),
        collect_facts_since(lake, KEY, champion),
        find_self_promotion(lake, KEY),
    )


def _read_histories(world: World) -> Any:
    lake = world.lake
    assets = ("sft_adapter", "evaluation", EXPORT, "episodes", "serving")
    return [
        (
            lake.history(asset, key),
            lake.pointers(asset, key),
            open_ledger(lake, key).records(),
            open_completed_moves(lake, key).records(),
        )
        for asset in assets
        for key in (KEY, OTHER)
    ]


def _list_unnamed(world: World) -> Any:
    return {
        (item.partition, item.asset, item.identity[:16])
        for item in prune(world.lake, keep=0).unnamed
    }


def _trace(world: World) -> Any:
    return models_of(world.lake, "s1")


def _open(world: World) -> Any:
    lake = Lake(world.lake.root, world.lake.fs.cache)
    return lake.open("curated_sessions", KEY).read().to_pylist()


class Noticed(PipelineError):
    """The sentence with which a command reports a difference."""


READING_USES: dict[str, Callable[[World], Any]] = {
    "look at what is served": _look_at_what_is_served,
    "use in a worker": _use_in_a_worker,
    "decide": _decide,
    "read the histories": _read_histories,
    "prune": _list_unnamed,
    "lineage": _trace,
    "open the lake": _open,
}
"""What reads a lake, and leaves it as it is."""
WRITING_USES: dict[str, Callable[[World], Any]] = {"promote": _promote, "serve": _serve}
"""What changes a lake."""


def flip(chance: random.Random, content: bytes) -> bytes:
    """Flip a bit."""
    changed = bytearray(content)
    changed[chance.randrange(len(changed))] ^= 1 << chance.randrange(8)
    return bytes(changed)


def cut_off(chance: random.Random, content: bytes) -> bytes:
    """Cut a file off."""
    return content[: chance.randrange(len(content))]


def fill_with_zeros(chance: random.Random, content: bytes) -> bytes:
    """Fill a part of a file with zeros, or all of it."""
    begin = chance.choice([0, chance.randrange(len(content))])
    end = chance.choice([len(content), chance.randrange(begin, len(content)) + 1])
    return content[:begin] + bytes(end - begin) + content[end:]


CHANGES = {"flipped": flip, "cut off": cut_off, "zeros": fill_with_zeros}


@dataclass
class Outcome:
    """What came of the damage to the files of one kind.

    Attributes:
        tries: how many files were damaged, one at a time.
        noticed: how often a use was refused with a sentence.
        harmless: how often every use gave what it gives without the damage.
        silent: the damage that changed what a use gave, without a sentence.
        stacks: the damage that ended a use with an error that is not a sentence.
    """

    tries: int = 0
    noticed: int = 0
    harmless: int = 0
    silent: list[str] = field(default_factory=list)
    stacks: list[str] = field(default_factory=list)
    noticed_by: Counter[str] = field(default_factory=Counter)


class Damager:
    """Damages the files of a world one at a time, and compares what its uses give."""

    def __init__(self, folder: Path, seed: int = 7) -> None:
        self.world, self._chance = World(folder), random.Random(seed)
        self.kinds = find_files(self.world)
        self._expected = {name: use(self.world) for name, use in READING_USES.items()}
        for name, use in WRITING_USES.items():
            self._expected[name] = use(self.world)
            self.world.restore()

    def damage(self, kind: str, change: str, tries: int) -> Outcome:
        """Change random files of a kind. `change` is a name of `CHANGES`, `exchanged` or `removed`."""
        outcome = Outcome()
        for _ in range(tries):
            changed = self._choose(kind, change)
            if changed:
                self._use(outcome, change, changed)
        return outcome

    def _choose(self, kind: str, change: str) -> dict[Path, bytes | None]:
        """Return the new content of one or two random files; `None` for a file that is to be removed."""
        files = [path for path in self.kinds[kind] if path.stat().st_size]
        path = self._chance.choice(files)
        content = path.read_bytes()
        if change == "removed":
            return {path: None}
        if change == "exchanged":
            others = [other for other in files if other.read_bytes() != content]
            other = self._chance.choice(others) if others else path
            return {path: other.read_bytes(), other: content} if others else {}
        changed = CHANGES[change](self._chance, content)
        return {path: changed} if changed != content else {}

    def _use(self, outcome: Outcome, change: str, changed: dict[Path, bytes | None]) -> None:
        """Use the world with these files, and count what comes of it."""
        what = f"{change} {', '.join(str(path.relative_to(self.world.folder)) for path in changed)}"
        outcome.tries += 1
        refused = False
        different = []
        _write(changed)
        for name, use in (READING_USES | WRITING_USES).items():
            if name in WRITING_USES:
                self.world.restore()
                _write(changed)
            try:
                if use(self.world) != self._expected[name]:
                    different.append(name)
            except PipelineError:
                refused = True
                outcome.noticed_by[name] += 1
            except Exception as error:
                outcome.stacks.append(f"{what}: {name}: {error!r}")
                refused = True
        self.world.restore()
        if different:
            outcome.silent.append(f"{what}: {', '.join(different)}")
        elif refused:
            outcome.noticed += 1
        else:
            outcome.harmless += 1


def _write(changed: dict[Path, bytes | None]) -> None:
    """Write the content of files, or remove them."""
    for path, content in changed.items():
        if content is None:
            path.unlink()
        else:
            path.write_bytes(content)
