"""`multi_task_dataset`: several agents in true proportions, every row in its split, nothing in two."""

import json
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from agent_pipeline.datasets.multi_task import MIXED_TABLE
from agent_pipeline.datasets.sft import SFT
from agent_pipeline.defs.partitions import AGENTS
from agent_pipeline.keys import PartitionKey, parse_key
from agent_pipeline.sessions.tables import to_batches, to_rows
from agent_pipeline_tests.defs.conftest import Bench, cells, metadata

A, B, C = PartitionKey("p", "a"), PartitionKey("p", "b"), PartitionKey("q", "c")


def row(
    agent: PartitionKey,
    name: str,
    split: str = "train",
    task: str = "",
    asked: str = "",
    said: str = "",
) -> dict[str, Any]:
    task = task or f"{agent.agent}-{name}"
    asked, said = asked or f"Do {task}.", said or f"{agent.agent} did {task}, {name}."
    return {
        "row_id": name,
        "session_id": name,
        "content_sha256": f"{agent}{name}",
        "task_key": task,
        "split": split,
        "messages": [{"content": asked, "role": "user"}, {"content": said, "role": "assistant"}],
        "tools": [],
        "score": None,
        "created_at": None,
        "turn_classes": ["answer"],
        "verdict_by": None,
        "served_model": None,
    }


def rows_of(
    agent: PartitionKey, train: int, test: int = 2, select: int = 1
) -> list[dict[str, Any]]:
    sides = {"train": train, "test": test, "select": select}
    return [
        row(agent, f"{split}{number:03}", split)
        for split, count in sides.items()
        for number in range(count)
    ]


class Mixing:
    """Agents with SFT tables, and the asset over them."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench

    def write(self, key: PartitionKey, rows: list[dict[str, Any]]) -> None:
        self.bench.lake.stage("sft_dataset", key, to_batches(rows, SFT), SFT).commit()
        self.know(key)

    def know(self, *keys: PartitionKey) -> None:
        self.bench.instance.add_dynamic_partitions(AGENTS.name or "", [str(key) for key in keys])

    def run(self, **config: Any) -> dg.ExecuteInProcessResult:
        ops = {"ops": {MIXED_TABLE: {"config": config}}} if config else {}
        return self.bench.defs.resolve_job_def("mix").execute_in_process(
            instance=self.bench.instance, run_config=ops, raise_on_error=False
        )

    def sentence(self) -> str:
        result = self.run()
        assert not result.success
        return self.bench.sentence(result)

    def made(self, **config: Any) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        result = self.run(**config)
        assert result.success
        return list(to_rows(self.bench.lake.open(MIXED_TABLE, None).iter_batches())), metadata(
            result, MIXED_TABLE
        )


@pytest.fixture
def mixing(bench: Bench) -> Mixing:
    return Mixing(bench)


def of_agents(rows: list[dict[str, Any]], split: str) -> dict[str, int]:
    return dict(Counter(row["agent"] for row in rows if row["split"] == split))


def weigh(monkeypatch: pytest.MonkeyPatch, **settings: Any) -> None:
    for name, value in settings.items():
        monkeypatch.setenv(
            f"AGENT_PIPELINE_MIXING__{name.upper()}",
            value if isinstance(value, str) else json.dumps(value),
        )


def test_training_rows_are_in_the_wanted_proportions_and_held_out_rows_are_all_there(
    mixing: Mixing, monkeypatch: pytest.MonkeyPatch
) -> None:
    (
        mixing.write(A, rows_of(A, 30)),
        mixing.write(B, rows_of(B, 30)),
        mixing.write(C, rows_of(C, 30)),
    )
    weigh(monkeypatch, weights={"p/b": 5, "p/*": 3, "q/c": 2}, total=20)
    rows, shown = mixing.made()
    assert of_agents(rows, "train") == {"a": 6, "b": 10, "c": 4}
    assert of_agents(rows, "test") == dict.fromkeys("abc", 2) and of_agents(
        rows, "select"
    ) == dict.fromkeys("abc", 1)
    assert ["p/b", "50.00%", "50.00%", "30", "10", "0", "10", "1", "2"] in cells(
        shown["proportions"]
    )
    assert {("rows_of_the_agents", "99"), ("not_needed", "70")} <= {
        tuple(row) for row in cells(shown["counts"])
    }
    for made in rows:
        key = parse_key(f"{made['project']}/{made['agent']}")
        [given] = [each for each in rows_of(key, 30) if made["row_id"] == f"{key}:{each['row_id']}"]
        assert (
            given | {"row_id": made["row_id"], "project": key.project, "agent": key.agent} == made
        )
    assert len({made["row_id"] for made in rows}) == len(rows)
    order = [made["agent"] for made in rows if made["split"] == "train"]
    assert order != sorted(order) and sum(a != b for a, b in pairwise(order)) > 5, (
        "mixed, not agent after agent"
    )


def test_what_an_agent_has_too_little_of_or_not_at_all_goes_to_the_others_and_is_said(
    mixing: Mixing, monkeypatch: pytest.MonkeyPatch
) -> None:
    mixing.write(A, rows_of(A, 30)), mixing.write(B, rows_of(B, 3)), mixing.know(C)
    weigh(monkeypatch, total=12)
    rows, shown = mixing.made()
    assert of_agents(rows, "train") == {"a": 9, "b": 3}
    assert shown["without_an_sft_dataset"] == "q/c" and shown["too_few_rows"] == {
        "p/b": 1,
        "q/c": 4,
    }
    assert ["agents_without_an_sft_dataset", "1"] in cells(shown["counts"])


@pytest.mark.parametrize(
    ("train", "held_out", "kind"),
    [
        ({"task": "shared"}, {"task": "shared"}, "its_task"),
        (
            {"asked": "The same  words", "said": "x"},
            {"asked": "the same words", "said": "y"},
            "its_request",
        ),
        ({"asked": "Do.", "said": "done"}, {"asked": "Do.", "said": "done"}, "its_text"),
    ],
)
def test_what_another_agent_holds_out_is_not_trained_on_and_counted(
    mixing: Mixing, train: Any, held_out: Any, kind: str
) -> None:
    mixing.write(A, [*rows_of(A, 3), row(A, "crossing", "train", **train)])
    mixing.write(B, [*rows_of(B, 4), row(B, "crossing", "test", **held_out)])
    rows, shown = mixing.made()
    assert "p/b:crossing" in {made["row_id"] for made in rows} and "p/a:crossing" not in {
        made["row_id"] for made in rows
    }
    assert [f"left_out_as_{kind}_is_held_out_more", "1"] in cells(shown["counts"]) and of_agents(
        rows, "train"
    )["a"] == 3


def test_jsonl_and_a_folder_are_written_as_of_every_data_set(
    mixing: Mixing, tmp_path: Path
) -> None:
    from datasets import load_dataset

    from agent_pipeline.sessions.session import Session
    from agent_pipeline.sessions.tables import CURATED, make_session_row

    for key in (A, B):
        mixing.write(key, rows_of(key, 4))
        nothing = dict.fromkeys(CURATED.names) | {
            "kept": False,
            "use": "neither",
            "drop_reason": "unjudged",
            "missed_measures": [],
        }
        session = make_session_row(
            Session(session_id="s", project=key.project, agent=key.agent, source="test")
        )
        mixing.bench.lake.stage(
            "curated_sessions", key, to_batches([nothing | session], CURATED), CURATED
        ).commit()
    _, shown = mixing.made(huggingface=True, format="prompt_completion_messages")
    lines = [
        json.loads(line)
        for line in (Path(shown["jsonl"]) / "train.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    assert len(lines) == 8 and all(
        {"prompt", "completion", "project", "agent", "task_key"} <= set(line) for line in lines
    )
    loaded = load_dataset(shown["huggingface"], cache_dir=str(tmp_path))
    assert {split: len(loaded[split]) for split in loaded} == {"train": 8, "select": 2, "test": 4}
    assert loaded["train"][0]["completion"][0]["role"] == "assistant" and set(
        loaded["train"]["agent"]
    ) == {"a", "b"}
    card = (Path(shown["huggingface"]) / "README.md").read_text(encoding="utf-8")
    assert (
        "agents `p/a`, `p/b`" in card
        and "\n| train | 8 | 8 |\n" in card
        and "- test: 2 sessions" in card
    )


@pytest.mark.parametrize(
    ("weights", "sentence"),
    [
        (
            {"p/x": 1},
            "The pattern 'p/x' in [mixing] matches no agent: use the names of the known agents (p/a).",
        ),
        ({"p/a": 0}, "[mixing] gives none of the 1 known agents a weight above 0"),
        ({"*": -1}, "'mixing.weights.*'"),
    ],
)
def test_weights_that_mix_nothing_are_one_sentence(
    mixing: Mixing, monkeypatch: pytest.MonkeyPatch, weights: Any, sentence: str
) -> None:
    mixing.write(A, rows_of(A, 2))
    weigh(monkeypatch, weights=weights)
    assert sentence in mixing.sentence()


def test_from_the_shell_it_needs_no_partition_and_a_partition_has_none_of_it(bench: Bench) -> None:
    from agent_pipeline.cli.runs import materialize
    from agent_pipeline.errors import SettingsError

    keys = [PartitionKey("shop", "support"), PartitionKey("office", "rooms")]
    for key in keys:
        assert materialize(bench.defs, bench.instance, key, "+sft_dataset").success
    result = materialize(bench.defs, bench.instance, None, MIXED_TABLE, ["huggingface=false"])
    assert result.success
    rows = list(to_rows(bench.lake.open(MIXED_TABLE, None).iter_batches()))
    assert {(made["project"], made["agent"]) for made in rows} == set(keys)
    train = Counter(made["project"] for made in rows if made["split"] == "train")
    assert train["shop"] == train["office"] > 10, "as many of each as the smaller has"
    with pytest.raises(SettingsError, match="partition"):
        materialize(bench.defs, bench.instance, keys[0], MIXED_TABLE)
    with pytest.raises(SettingsError, match="multi_task_dataset"):
        materialize(bench.defs, bench.instance, None, "sft_dataset")
