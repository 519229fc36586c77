"""No token that a tool, a user or the system said is trained, on real sessions; stock TRL trains them in pairs and judged sessions.

All pairs, and a tenth of the other rows; all of them with AGENT_PIPELINE_ALL_ROWS=1, which takes two minutes. The second opinion is Hugging
Face's own mask of the assistant's tokens, from a template with generation marks.
"""

import os
from typing import Any

import pytest

from agent_pipeline.datasets.kto import make_kto_rows
from agent_pipeline.datasets.preferences import Pairing, pair_sessions
from agent_pipeline.datasets.sft import make_sft_rows
from agent_pipeline.datasets.splits import SplitSizes
from agent_pipeline.ingestion.reading import ReadingOptions, read_sessions
from agent_pipeline.models.base_model import BaseModel
from agent_pipeline.models.device import EXACT
from agent_pipeline.models.loading import load_model
from agent_pipeline.models.rendering import as_servers_send, as_template_wants
from agent_pipeline.redaction import RedactionOptions
from agent_pipeline.sessions.session import Session
from agent_pipeline.sessions.tables import make_session_row
from agent_pipeline.sources import open_source
from agent_pipeline.tokenization.encoding import encode_rows
from agent_pipeline.tokenization.loss_masks import Encoded
from agent_pipeline.training.decision_probes import is_same_decision
from agent_pipeline.training.preference_examples import encode_pairs, encode_sessions
from agent_pipeline_tests.datasets.test_preferences import curated
from agent_pipeline_tests.tokenization.test_loss_masks import MARKED

pytestmark = pytest.mark.slow
LONGEST = 10**6
ALL_ROWS = bool(
    os.environ.get("AGENT_PIPELINE_ALL_ROWS")
)  # taken before the isolation of tests takes it away
Row = dict[str, Any]


@pytest.fixture(scope="module")
def judged(real_traces) -> tuple[list[Session], list[Session]]:
    """The good and the bad runs of AgentDojo (as runs of one agent) and of tau-bench."""
    sessions = []
    for store in ("agentdojo", "tau-bench"):
        source = open_source(real_traces / store)
        for key in source.partitions():
            for each in read_sessions(
                source, key, ReadingOptions(redaction=RedactionOptions(enabled=False))
            ):
                each.session_id = f"{key}/{each.session_id}"
                each.tools = each.tools if store == "tau-bench" else []
                sessions.append(each)
    good, bad, _ = curated(sessions)
    return good, bad


def theirs(tokenizer, messages: list, tools: list) -> dict[str, Any]:
    """A conversation's tokens, and Hugging Face's mask of those that are the assistant's."""
    return tokenizer.apply_chat_template(
        messages, tools=as_servers_send(tools) or None, chat_template=MARKED,
        return_dict=True, return_assistant_tokens_mask=True,
    )  # fmt: skip


def of_others(renderer, row: Row, messages: list, encoded: Encoded) -> int:
    """Trained tokens that are not the assistant's."""
    expected = theirs(renderer.tokenizer, as_template_wants(messages, "dict"), row["tools"])
    assert encoded.input_ids == expected["input_ids"] and any(encoded.trained)
    return sum(
        own and not bit
        for own, bit in zip(encoded.trained, expected["assistant_masks"], strict=True)
    )


def some(rows: list[Row]) -> list[Row]:
    return rows if ALL_ROWS else rows[::10]


def test_no_token_of_others_is_trained_in_any_real_row_of_imitation(smollm2_renderer, judged):
    rows = some(list(make_sft_rows(map(make_session_row, judged[0]), SplitSizes())))
    encoded, counts, _ = encode_rows(smollm2_renderer, rows, LONGEST)
    assert len(encoded) == counts["in"] > 150
    assert (
        sum(
            of_others(smollm2_renderer, row, each.messages, each.encoded)
            for row, each in zip(rows, encoded, strict=True)
        )
        == 0
    )


@pytest.mark.parametrize("method", ["dpo", "kto"])
def test_no_token_of_others_is_trained_in_any_real_judgment_where_stock_trl_trains_them(
    smollm2_renderer, convertible_base, judged, tmp_path, method
):
    import trl
    from datasets import Dataset

    good, bad = judged
    if method == "dpo":
        rows = list(pair_sessions(good, bad, SplitSizes(), pairing=Pairing(max_per_case=0)))
        encode, sides = encode_pairs, ("chosen", "rejected")
        rows = [
            row
            for row in rows
            if len(row["rejected"]) == 1
            or not is_same_decision(row["chosen"][0], row["rejected"][0])
        ]
    else:
        rows = some(
            list(
                make_kto_rows(
                    [*((each, True) for each in good), *((each, False) for each in bad)],
                    SplitSizes(),
                )
            )
        )
        encode, sides = encode_sessions, ("completion",)
    examples, counts, first_dropped = encode(smollm2_renderer, rows, LONGEST)
    assert len(examples) == counts["in"] > 200, (counts, first_dropped)
    ours = 0
    for row, example in zip(rows, examples, strict=True):
        for side, encoded in zip(sides, example.rows, strict=False):
            said = row[side][:1] if method == "dpo" else row[side]
            ours += of_others(smollm2_renderer, row, [*row["prompt"], *said], encoded)
    assert ours == 0

    stock = [
        row
        for row in rows
        if any(message["role"] == "tool" for side in sides for message in row[side])
    ][:8]
    columns = [
        {name: row[name] for name in ("prompt", *sides, "label", "tools") if name in row}
        for row in stock
    ]
    made = {"dpo": (trl.DPOConfig, trl.DPOTrainer), "kto": (trl.KTOConfig, trl.KTOTrainer)}[method]
    arguments = made[0](
        output_dir=str(tmp_path),
        use_cpu=True,
        bf16=False,
        report_to="none",
        max_length=None,
        disable_tqdm=True,
    )
    base = BaseModel("tiny", convertible_base, "")
    data = Dataset.from_list(columns)
    trainer = made[1](
        load_model(base, EXACT),
        args=arguments,
        train_dataset=data,
        processing_class=smollm2_renderer.tokenizer,
    )
    for row, prepared in zip(stock, trainer.train_dataset, strict=True):
        batch = trainer.data_collator([prepared])
        foreign = 0
        for side, ids, counted in zip(
            sides, batch["input_ids"].tolist(), batch["completion_mask"].tolist(), strict=False
        ):
            expected = theirs(
                smollm2_renderer.tokenizer, [*row["prompt"], *row[side]], row["tools"]
            )
            assert ids[: len(expected["input_ids"])] == expected["input_ids"]
            foreign += sum(
                bool(on) and not own
                for on, own in zip(counted, expected["assistant_masks"], strict=False)
            )
        assert foreign > 0
