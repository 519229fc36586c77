"""Nights of a store that is pruned: what `replay_buffer` remembers of them, and what the step `sft` trains on again."""

import dagster as dg
import pyarrow as pa
import pytest

from agent_pipeline.datasets.sft import SFT
from agent_pipeline.datasets.splits import SplitSizes
from agent_pipeline.defs.models import adapter as adapters
from agent_pipeline.ingestion.block_list import BlockList
from agent_pipeline.keys import parse_key
from agent_pipeline.sessions.session import hash_json
from agent_pipeline.sessions.tables import CURATED, to_rows, to_table
from agent_pipeline.storage.lake import sha256_file
from agent_pipeline_tests.defs.conftest import cells, worker_here
from agent_pipeline_tests.training.world import row as weather

KEY = parse_key("shop/support")
CHOSEN = {"sft_coreset": {"strategy": "random", "target_size": 18}}


def rows(*numbers: int) -> list[dict]:
    """Rows whose tasks have the sides that their hashes give them."""
    made = [
        weather(number) | {"split": SplitSizes().find_split(f"task-{number}")} for number in numbers
    ]
    for number, row in zip(numbers, made, strict=True):
        row["messages"][1]["content"] += f" Order {number}."
    return [row | {"content_sha256": hash_json(row["messages"])} for row in made]


def sessions(found) -> set[str]:
    return {row["session_id"] for row in found}


class Nights:
    """A lake whose data assets are put there, night by night."""

    def __init__(self, bench) -> None:
        self.bench, self.lake = bench, bench.lake
        self.chosen: set[str] = set()

    def night(
        self,
        data: list[dict],
        dropped: tuple[str, ...] = (),
        bad: dict[str, list] | None = None,
        bad_by: str = "label",
        **config,
    ) -> dict:
        """Tonight's tables (the store has the sessions of `data`, and `dropped`, and `bad` with their messages), the coreset and the buffer; the buffer's metadata."""
        uses = dict.fromkeys(sessions(data), "positive") | dict.fromkeys(dropped, "neither")
        chats = bad or {}
        uses |= dict.fromkeys(chats, "negative")
        curated = [
            {
                "session_id": name,
                "use": use,
                "verdict_by": bad_by,
                "messages": chats.get(name, []),
            }
            for name, use in sorted(uses.items())
        ]
        names = ("session_id", "use", "verdict_by", "messages")
        schema = pa.schema([CURATED.field(name) for name in names])
        met = to_table(curated, schema)
        self.lake.stage("curated_sessions", KEY, met.to_batches(), met.schema).commit()
        self.lake.stage("sft_dataset", KEY, to_table(data, SFT).to_batches(), SFT).commit()
        result = self.bench.run(
            str(KEY), "sft_coreset", "replay_buffer", config=CHOSEN | {"replay_buffer": config}
        )
        assert result.success, self.bench.sentence(result)
        self.chosen = {
            row["session_id"]
            for row in to_rows(self.lake.open("sft_coreset", KEY).iter_batches())
            if row["chosen"]
        }
        return dict(result.asset_materializations_for_node("replay_buffer")[0].metadata)

    def buffer(self) -> list[dict]:
        return list(to_rows(self.lake.open("replay_buffer", KEY).iter_batches()))

    def bytes(self) -> str:
        return sha256_file(self.lake.table("replay_buffer", KEY))


@pytest.fixture
def nights(bench) -> Nights:
    return Nights(bench)


def test_the_buffer_keeps_sessions_that_the_store_lost_and_is_the_same_when_made_again(nights):
    nights.night(rows(*range(40)))
    first, before = nights.chosen, nights.bytes()
    assert sessions(nights.buffer()) == first and len(first) == 18
    nights.night(rows(*range(40)))
    assert nights.bytes() == before
    said = nights.night(rows(*range(40, 80)))
    assert sessions(nights.buffer()) == first | nights.chosen and not first & nights.chosen
    assert ["of earlier nights, and no longer in the store", "18"] in cells(
        said["what_became_of_them"].value
    )
    assert said["rows_before"].value == 18 and said["dagster/row_count"].value == 36
    second = nights.bytes()
    nights.night(rows(*range(40, 80)))
    assert nights.bytes() == second


def test_a_full_buffer_keeps_the_lowest_hashes_and_a_size_of_zero_nothing(nights):
    nights.night(rows(*range(40)), buffer_size=10)
    before = [row["session_id"] for row in nights.buffer()]
    said = nights.night(rows(*range(40, 80)), buffer_size=10)
    after = [row["session_id"] for row in nights.buffer()]
    assert len(before) == len(after) == 10 and set(after) & set(before) and set(after) - set(before)
    assert ["removed, because the random sample chose other rows", "18"] in cells(
        said["what_became_of_them"].value
    )
    nights.night(rows(*range(40, 80)), buffer_size=0)
    assert nights.buffer() == []


def test_no_row_of_a_held_out_task_or_text_stays_and_curation_is_obeyed(nights):
    nights.night(rows(*range(40)))
    known = nights.buffer()
    moved, copied, dropped = (row["session_id"] for row in known[:3])
    # The ledger says that a task is tested on; a held-out row says what a remembered one says; curation drops a third session.
    ledger = pa.table({"task_key": [known[0]["task_key"]], "split": ["test"]})
    nights.lake.stage("split_ledger", KEY, ledger.to_batches(), ledger.schema).commit()
    tested = rows(*range(40, 80))
    copy = next(row for row in tested if row["split"] == "test")
    copy["messages"] = known[1]["messages"]
    said = nights.night(tested, (dropped,))
    assert not {moved, copied, dropped} & sessions(nights.buffer()) and len(nights.buffer()) == 33
    assert ["removed: held out", "2"] in cells(said["what_became_of_them"].value)
    assert ["removed, because it is no longer a training row", "1"] in cells(
        said["what_became_of_them"].value
    )


def test_a_bad_copy_under_another_id(nights):
    """The store lost a session and has it again under another id, which a person called bad."""
    nights.night(rows(*range(40)))
    known = nights.buffer()
    copy = [*known[0]["messages"], {"role": "user", "content": "That is wrong!"}]
    other = [*known[1]["messages"], {"role": "assistant", "content": "One more thing."}]
    said = nights.night(rows(*range(40, 80)), bad={"copy": copy, "other": other})
    assert known[0]["session_id"] not in sessions(nights.buffer())
    assert sessions(known[1:]) <= sessions(nights.buffer())
    assert ["removed: judged bad under another id", "1"] in cells(said["what_became_of_them"].value)


def test_a_bad_copy_with_another_system_prompt(nights):
    """A verdict under a new policy is not a verdict on what was right under the old policy."""
    nights.night(rows(*range(40)))
    known = nights.buffer()
    system = {"role": "system", "content": "Never tell the weather."}
    assert known[0]["messages"][0]["role"] == "system"
    nights.night(rows(*range(40, 80)), bad={"copy": [system, *known[0]["messages"][1:]]})
    assert sessions(known) <= sessions(nights.buffer())


@pytest.mark.parametrize(
    ("good_by", "bad_by", "stays"),
    [
        ("label", "unverified", True),
        ("label", "score", True),
        ("score", "unverified", True),
        ("score", "score", False),
        ("unverified", "unverified", False),
        ("unverified", "label", False),
    ],
)
def test_authority_of_a_bad_copy(nights, good_by: str, bad_by: str, stays: bool):
    """A bad verdict removes a remembered row only if curation would believe it too."""
    nights.night([row | {"verdict_by": good_by} for row in rows(*range(40))])
    known = nights.buffer()[0]
    nights.night(rows(*range(40, 80)), bad={"copy": known["messages"]}, bad_by=bad_by)
    assert (known["session_id"] in sessions(nights.buffer())) == stays


def test_a_bad_copy_of_a_row_whose_last_turn_was_excluded(nights):
    """A row is cut before the turn that a fact excluded, and the stored copy still has this turn."""
    last = {"role": "assistant", "content": "Sorry, that failed."}
    data = rows(*range(40))
    whole = {row["session_id"]: [*row["messages"], last] for row in data}
    for row in data:
        row["row_id"] = f"{row['session_id']}#1,{len(row['messages'])}"
        row["messages"][1] = row["messages"][1] | {"weight": 0}
    nights.night(data)
    gone, longer, *others = sessions(nights.buffer())
    bad = {"copy": whole[gone], "longer": [*whole[longer], last]}
    nights.night(rows(*range(40, 80)), bad=bad)
    assert gone not in sessions(nights.buffer())
    assert {longer, *others} <= sessions(nights.buffer())


def test_what_is_remembered_is_redacted_by_the_settings_of_the_run_and_what_is_forgotten_goes(
    nights, monkeypatch
):
    data = rows(*range(40))
    for row in data:
        row["messages"][1]["content"] += " Write to ada@lovelace.org."
    monkeypatch.setenv("AGENT_PIPELINE_REDACTION__ENABLED", "false")
    nights.night(data)
    monkeypatch.delenv("AGENT_PIPELINE_REDACTION__ENABLED")
    nights.night(rows(*range(40, 80)))
    old = [row for row in nights.buffer() if int(row["session_id"].split("-")[1]) < 40]
    assert len(old) == 18
    assert all(
        "<EMAIL_1>" in row["messages"][1]["content"] and "lovelace" not in str(row["messages"])
        for row in old
    )
    before = nights.bytes()
    nights.night(rows(*range(40, 80)))
    assert nights.bytes() == before
    BlockList.add(nights.lake, [old[0]["session_id"]], KEY)
    said = nights.night(rows(*range(40, 80)))
    assert old[0]["session_id"] not in sessions(nights.buffer()) and said["forgotten"].value == 1


def test_a_damaged_buffer_is_not_taken_for_an_empty_one(nights, bench):
    nights.night(rows(*range(40)))
    nights.lake.table("replay_buffer", KEY).write_bytes(b"half a file")
    result = bench.run(str(KEY), "replay_buffer")
    assert not result.success and "The replay buffer of shop/support" in bench.sentence(result)


@pytest.fixture
def here(monkeypatch, tiny_base, bench):
    """Trains in this process, on the tiny world's base model."""
    worker_here(monkeypatch)
    config = {
        "base_model": str(tiny_base.path),
        "max_steps": 1,
        "batch_size": 2,
        "lora_r": 2,
        "max_length": 400,
    }
    return lambda **more: bench.run(str(KEY), "adapter", config={"sft_adapter": config | more})


@pytest.mark.slow
def test_a_night_trains_on_rows_of_earlier_nights_too_and_its_manifest_names_their_sessions(
    nights, here, monkeypatch
):
    train = here
    nights.night(rows(*range(40)))
    first = nights.chosen
    result = train()
    said = result.asset_materializations_for_node("adapter")[0].metadata
    assert said["replayed"].value.startswith("nothing is replayed")
    assert "replay" not in nights.lake.latest("sft_adapter", KEY).manifest["made_from"]

    nights.night(rows(*range(20, 60)))
    result = train()
    made = nights.lake.latest("sft_adapter", KEY).manifest
    replayed = set(made["made_from"]["replay"]["sessions"])
    assert (
        len(replayed) == 2
        and replayed <= first - nights.chosen
        and made["made_from"]["replay"]["ratio"] == 0.1
    )
    assert set(made["made_from"]["sessions"]) == nights.chosen | replayed
    assert made["report"]["replay"]["trained"] == 2 and made["report"]["replay"]["ratio"] == 0.1
    said = result.asset_materializations_for_node("adapter")[0].metadata
    assert (
        said["replayed"].value
        == "2 rows of earlier nights are replayed, 10.0% of all rows (the setting is 10.0%; rounded down to whole rows)"
    )

    assert [each.passed for each in result.get_asset_check_evaluations()] == [True]

    nights.night(rows(*range(20, 60)))
    monkeypatch.setattr(adapters, "MAX_DROPPED_SHARE", -1)
    again = train()
    (check,) = again.get_asset_check_evaluations()
    assert (
        not check.passed
        and check.severity == dg.AssetCheckSeverity.WARN
        and check.metadata["sft_dropped_too_long"].value == 0
    )
    assert again.asset_materializations_for_node("adapter")[0].metadata["reused"].value is True
    train(replay_ratio=0.0)
    assert "replay" not in nights.lake.latest("sft_adapter", KEY).manifest["made_from"]
