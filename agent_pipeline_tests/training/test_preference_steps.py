"""Training from preferences: TRL's loss on our masks, and an adapter that survives a kill."""

from dataclasses import replace
from pathlib import Path

import pytest

from agent_pipeline.engine.scoring import compute_losses
from agent_pipeline.models.device import probe_device
from agent_pipeline.models.loading import load_model
from agent_pipeline.progress import silent
from agent_pipeline.training.config import DpoTraining, KtoTraining
from agent_pipeline.training.decision_probes import (
    find_fallen_kinds,
    find_probes,
    measure_decisions,
    name_kind,
)
from agent_pipeline.training.preference_examples import (
    MAX_KIND_WEIGHT,
    balance_kinds,
    encode_pairs,
    encode_sessions,
    set_reference,
)
from agent_pipeline.training.preference_steps import NothingTrained, train_preferences
from agent_pipeline.training.provenance import FurtherInput
from agent_pipeline.training.trainers import preferences as trainers
from agent_pipeline.training.trainers.preferences import Dpo, Kto
from agent_pipeline_tests.training.kills import killed
from agent_pipeline_tests.training.test_sft import files
from agent_pipeline_tests.training.world import CITIES, TRAINING, call, row, train_adapter

pytestmark = pytest.mark.slow


def pair(number: int, split: str = "train") -> dict:
    """A look-up where one was due, before the same question answered out of thin air; both sessions go on with a tool's result."""
    messages = row(number)["messages"]
    wrong = [
        {"role": "assistant", "content": "", "tool_calls": [call("weather", {"city": "Atlantis"})]},
        {"role": "tool", "tool_call_id": "call00001", "content": "THE RESULT OF A TOOL"},
        {"role": "assistant", "content": f"It rains in {CITIES[number % len(CITIES)]}."},
    ]
    given = {
        name: row(number, split)[name]
        for name in ("row_id", "session_id", "task_key", "split", "tools", "content_sha256")
    }
    return given | {"prompt": messages[:2], "chosen": messages[2:], "rejected": wrong}


def session(number: int, split: str = "train") -> dict:
    of = pair(number, split)
    good = number % 2 == 0
    return {
        **{k: v for k, v in of.items() if k not in ("chosen", "rejected")},
        "completion": of["chosen" if good else "rejected"],
        "label": good,
    }


PAIRS, HELDOUT = (
    [pair(number) for number in range(8)],
    [pair(number, "test") for number in range(30, 36)],
)
SESSIONS, HELDOUT_SESSIONS = (
    [session(number) for number in range(8)],
    [session(number, "test") for number in range(30, 36)],
)
SELECT = [row(number, "select") for number in range(40, 46)]
STEPS = {
    "learning_rate": 2e-3,
    "num_train_epochs": 4,
    "stop_steps": 3,
    "stop_fall": 1.0,
    "precision": "float32",
}
DPO = DpoTraining(**STEPS)
KTO = KtoTraining(**STEPS)
METHODS = {"dpo": (PAIRS, HELDOUT, DPO), "kto": (SESSIONS, HELDOUT_SESSIONS, KTO)}


@pytest.fixture(scope="module")
def imitated(tiny_base, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("sft")
    train_adapter(
        [row(number) for number in range(24)], tiny_base, TRAINING.changed(num_train_epochs=1), out
    )
    return out


def trained(method: str, base, adapter: Path, out: Path, **more):
    rows, heldout, config = METHODS[method]
    further_input = FurtherInput(method, rows, base, adapter, config, "sft", SELECT)
    return train_preferences(further_input, out, heldout, **more)


@pytest.fixture(scope="module", params=METHODS)
def made(request, tiny_base, imitated, tmp_path_factory):
    out = tmp_path_factory.mktemp(request.param)
    return request.param, out, trained(request.param, tiny_base, imitated, out)


def test_held_out_judgments_are_ranked_better_than_before(made):
    method, _, report = made
    figures = report.heldout
    if method == "dpo":
        assert (
            figures["pairs"] == 6
            and figures["reward_accuracy"] >= 0.8
            and figures["reward_margin"] > 0
        )
    else:
        assert figures["good"] == figures["bad"] == 3 and figures["reward_auc"] >= 0.8
    assert (
        report.template["origin"] == "hermes"
    )  # loaded with the adapter, ours would pass for the model's own
    assert (
        report.rows["trained"] == 8
        and report.steps == report.weights_of_step == 8
        and report.stopped_by == []
    )
    looks = report.decisions.looks
    assert [look.step for look in looks] == [3, 6, 8] and looks[0].select.keys() == {
        "user → weather",
        "weather → answer",
    }


def test_a_killed_training_goes_on_and_ends_with_the_same_bytes(
    made, tiny_base, imitated, tmp_path
):
    method, out, _ = made
    killed(trained, method, tiny_base, imitated, tmp_path, step=5)
    assert trained(method, tiny_base, imitated, tmp_path).resumed_from == 3
    assert files(tmp_path) == files(out)


def trl_batch(trainer, examples, method: str) -> dict:
    """Our tokens, collated and masked by TRL."""

    def parts(encoded):
        start, stop = (
            encoded.trained.index(True),
            len(encoded.trained) - encoded.trained[::-1].index(True),
        )
        return encoded.input_ids[:start], encoded.input_ids[start:stop]

    columns = []
    for each in examples:
        (prompt, own), (_, other) = map(parts, each.rows)
        names = (
            ("chosen_ids", "rejected_ids")
            if method == "dpo"
            else ("completion_ids", "KL_completion_ids")
        )
        columns.append({"prompt_ids": prompt, names[0]: own, names[1]: other, "label": each.good})
    return trainer.data_collator(columns)


def one_turn(rows: list[dict]) -> list[dict]:
    return [
        {**each, "completion": each["completion"][:1]} if "completion" in each else each
        for each in rows
    ]


@pytest.mark.parametrize("as_trees", [True, False])
@pytest.mark.parametrize("method", METHODS)
def test_loss_and_gradients_are_those_of_trl(
    tiny_base, tiny_renderer, tmp_path, monkeypatch, method, as_trees
):
    """On one-turn completions, where TRL's masks are right too."""
    import torch
    import trl
    from datasets import Dataset
    from transformers import TrainingArguments

    reason = None if as_trees else "a test"
    monkeypatch.setattr(trainers, "explain_row_by_row", lambda *_: reason)
    encode, objective = (
        (encode_pairs, Dpo(0.1, 0.2)) if method == "dpo" else (encode_sessions, Kto(0.1))
    )
    examples = [
        replace(each, weight=1.0)
        for each in encode(tiny_renderer, one_turn(METHODS[method][0][:4]), 512).rows
    ]
    common = {
        "output_dir": str(tmp_path),
        "use_cpu": True,
        "bf16": False,
        "report_to": "none",
        "disable_tqdm": True,
    }
    theirs_only = {
        "beta": 0.1,
        "max_length": None,
        "gradient_checkpointing": False,
        "train_sampling_strategy": "sequential",
    }
    reference = load_model(tiny_base, probe_device())
    policy = load_model(tiny_base, probe_device())
    with torch.no_grad():
        for weights in policy.parameters():
            weights.add_(
                torch.randn(weights.shape, generator=torch.Generator().manual_seed(1)), alpha=0.01
            )
    if method == "dpo":
        arguments = trl.DPOConfig(
            **common, **theirs_only, loss_type=["sigmoid", "sft"], loss_weights=[1.0, 0.2]
        )
    else:
        arguments = trl.KTOConfig(**common, **theirs_only)
    columns = {"dpo": ("prompt", "chosen", "rejected"), "kto": ("prompt", "completion", "label")}[
        method
    ]
    dataset = Dataset.from_list(
        [{name: each[name] for name in columns} for each in METHODS[method][0][:4]]
    )
    make = trl.DPOTrainer if method == "dpo" else trl.KTOTrainer
    theirs = make(
        policy,
        reference,
        args=arguments,
        train_dataset=dataset,
        processing_class=tiny_renderer.tokenizer,
    )
    loss = theirs.compute_loss(theirs.model, trl_batch(theirs, examples, method))
    loss.backward()
    expected = {
        name: weights.grad.clone()
        for name, weights in policy.named_parameters()
        if weights.grad is not None
    }
    policy.zero_grad()

    arguments = TrainingArguments(**common, per_device_train_batch_size=4)
    ours = trainers.build_preference_trainer(
        policy, set_reference(reference, examples), objective, arguments, silent
    )
    ours.create_optimizer()
    assert float(ours.training_step(policy, {"examples": ours.train_dataset})) == pytest.approx(
        float(loss.detach()), abs=1e-5
    )
    for name, weights in policy.named_parameters():
        torch.testing.assert_close(weights.grad, expected[name], rtol=1e-3, atol=1e-5)


def trained_text(renderer, ids, mask) -> str:
    return renderer.decode([token for token, on in zip(ids, mask, strict=True) if on])


def test_no_token_of_a_tool_or_a_user_is_trained_where_stock_trl_trains_it(
    tiny_base, tiny_renderer, tmp_path
):
    import trl
    from datasets import Dataset

    given = [
        pair(0),
        {
            **pair(1),
            "rejected": [
                *pair(1)["rejected"],
                {"role": "user", "content": "A USER"},
                *row(1)["messages"][-1:],
            ],
        },
    ]
    arguments = trl.DPOConfig(
        output_dir=str(tmp_path),
        per_device_train_batch_size=2,
        use_cpu=True,
        bf16=False,
        report_to="none",
        max_length=None,
    )
    columns = [
        {name: each[name] for name in ("prompt", "chosen", "rejected", "tools")} for each in given
    ]
    stock = trl.DPOTrainer(
        load_model(tiny_base, probe_device()),
        args=arguments,
        train_dataset=Dataset.from_list(columns),
        processing_class=tiny_renderer.tokenizer,
    )
    batch = next(iter(stock.get_train_dataloader()))
    theirs = " ".join(
        trained_text(tiny_renderer, *each)
        for each in zip(batch["input_ids"], batch["completion_mask"], strict=True)
    )
    assert "THE RESULT OF A TOOL" in theirs and "A USER" in theirs

    judged = [{**each, "completion": each["rejected"], "label": False} for each in given]
    for examples in (
        encode_pairs(tiny_renderer, given, 512),
        encode_sessions(tiny_renderer, judged, 512),
    ):
        assert len(examples.rows) == 2
        ours = " ".join(
            trained_text(tiny_renderer, each.input_ids, each.trained)
            for example in examples.rows
            for each in example.rows
        )
        assert (
            "Atlantis" in ours
            and "THE RESULT" not in ours
            and "A USER" not in ours
            and "sunny" not in ours.replace("sunny in Rome", "")
        )


def test_a_training_stops_where_one_kind_of_decision_falls_and_takes_the_last_good_weights(
    tiny_base, imitated, tmp_path, monkeypatch
):
    import torch
    from safetensors.torch import load_file

    looks = iter([{"a": 0.9, "b": 0.5}, {"a": 0.9, "b": 0.5}, {"a": 0.95, "b": 0.4}])
    monkeypatch.setattr(trainers, "measure_decisions", lambda *_: next(looks))
    monkeypatch.setattr(
        trainers,
        "find_fallen_kinds",
        lambda before, now, *_: [name for name in before if now[name] < before[name]],
    )
    seen = {}

    def watching(done, total, text):
        if "training, loss" in text and done == 5:
            seen.update(
                load_file(tmp_path / "checkpoints" / "checkpoint-3" / "adapter_model.safetensors")
            )

    report = trained("dpo", tiny_base, imitated, tmp_path, progress=watching)
    assert (report.steps, report.weights_of_step, report.stopped_by) == (6, 3, ["b"])
    torch.testing.assert_close(
        load_file(tmp_path / "adapter_model.safetensors"), seen, rtol=0, atol=0
    )


def test_a_fall_at_the_first_look_leaves_no_adapter(tiny_base, imitated, tmp_path, monkeypatch):
    monkeypatch.setattr(trainers, "find_fallen_kinds", lambda *_: ["user → weather"])
    with pytest.raises(NothingTrained, match="user → weather"):
        trained("dpo", tiny_base, imitated, tmp_path)


def test_too_few_pairs_are_one_sentence_and_counted(tiny_base, imitated, tmp_path):
    long = {**pair(9), "prompt": [{"role": "user", "content": "x" * 3000}]}
    wording = {
        **pair(8),
        "rejected": [{**pair(8)["chosen"][0], "content": "Let me look."}, *pair(8)["rejected"][1:]],
    }
    with pytest.raises(NothingTrained) as error:
        rows, config = [pair(0), long, wording], DPO.changed(max_length=512)
        train_preferences(FurtherInput("dpo", rows, tiny_base, imitated, config), tmp_path)
    assert "\n" not in str(error.value)
    counts = {"in": 3, "same_decision": 1, "dropped_too_long": 1, "trained": 1}
    assert error.value.counts.items() >= counts.items()


def test_only_bad_sessions(tiny_base, imitated, tmp_path):
    """Nothing would hold the model at what it says well: all it learns is to say less."""
    bad = [session(number) for number in range(1, 40, 2)]
    with pytest.raises(NothingTrained) as error:
        train_preferences(FurtherInput("kto", bad, tiny_base, imitated, KTO), tmp_path)
    assert error.value.counts["trained"] == len(bad)


def test_a_pair_with_an_answer_that_begins_with_line_breaks_is_trained(smollm2_renderer):
    broken = {**pair(0), "rejected": [{"role": "assistant", "content": "\n\nIt rains."}]}
    encoded = encode_pairs(smollm2_renderer, [broken], 512)
    assert len(encoded.rows) == 1, encoded.first_dropped


def test_kinds_count_the_same_up_to_a_limit(tiny_renderer):
    example = encode_pairs(tiny_renderer, PAIRS[:1], 512).rows[0]
    weights = {
        each.kind: each.weight
        for each in balance_kinds([replace(example, kind=name) for name in "aaabbc"])
    }
    assert weights == pytest.approx({"a": 2 / 3, "b": 1.0, "c": 2.0})
    assert (
        balance_kinds([replace(example, kind="rare"), *[replace(example, kind="often")] * 99])[
            0
        ].weight
        == MAX_KIND_WEIGHT
    )


def test_a_decision_is_what_is_called_and_after_what():
    messages = row(0)["messages"]
    assert [name_kind(messages, at) for at in (2, 4)] == ["user → weather", "weather → answer"]


def test_the_probability_of_a_decision_is_that_of_its_tokens(tiny_base, tiny_renderer, imitated):
    asked = find_probes(tiny_renderer, SELECT, 512, 4)
    assert sorted(each.kind for each in asked) == ["user → weather"] * 4 + ["weather → answer"] * 4
    before, after = (
        measure_decisions(load_model(tiny_base, probe_device(), adapter), asked)
        for adapter in (None, imitated)
    )
    assert after["user → weather"] > before["user → weather"] and after["weather → answer"] > 0.5
    called = next(each for each in asked if each.kind == "user → weather")
    assert trained_text(tiny_renderer, called.encoded.input_ids, called.encoded.trained).endswith(
        "weather"
    )
    high, low = {"user → weather": 0.9}, {"user → weather": 0.8}
    assert find_fallen_kinds(high, low, asked, 0.05) == ["user → weather"]
    assert find_fallen_kinds(high, dict.fromkeys(high, float("nan")), asked, 0.05) == [
        "user → weather"
    ]
    assert (
        find_fallen_kinds(high, low, asked, 0.2)
        == find_fallen_kinds(low, high, asked, 0.05)
        == find_fallen_kinds(high, low, asked[:3], 0.05)
        == []
    )
    assert find_probes(tiny_renderer, SELECT, 512, 0) == []


def test_a_turn_that_is_not_to_be_trained_is_no_right_decision(tiny_renderer):
    messages = [
        message | {"weight": 0} if message.get("tool_calls") else message
        for message in row(1)["messages"]
    ]
    asked = find_probes(
        tiny_renderer, [row(0, "select"), {**row(1, "select"), "messages": messages}], 512, 4
    )
    assert sorted(each.kind for each in asked) == [
        "user → weather",
        "weather → answer",
        "weather → answer",
    ]


def test_a_decision_after_words_is_looked_at_where_a_call_begins(tiny_renderer):
    spoken = [
        {**row(number), "messages": [{**each} for each in row(number)["messages"]]}
        for number in range(2)
    ]
    spoken[1]["messages"][2]["content"] = "Let me look."
    call, spoken_call, *answers = sorted(
        find_probes(tiny_renderer, spoken, 512, 4),
        key=lambda each: (each.refuted, len(each.encoded.input_ids)),
    )
    texts = [
        trained_text(tiny_renderer, each.encoded.input_ids, each.encoded.trained)
        for each in (call, spoken_call)
    ]
    assert (
        texts[0] == texts[1] and texts[0].startswith("<tool_call>") and texts[0].endswith("weather")
    )
    assert "Let me look." in tiny_renderer.tokenizer.decode(spoken_call.encoded.input_ids)
    assert (
        all(
            "It is sunny" in tiny_renderer.tokenizer.decode(each.encoded.input_ids[:-1])
            for each in answers
        )
        and len(answers) == 2
    )


def test_the_reference_is_the_adapter_and_not_its_base(tiny_base, tiny_renderer, imitated):
    examples = encode_pairs(tiny_renderer, PAIRS[:2], 512).rows
    of_adapter = set_reference(
        load_model(tiny_base, probe_device(), imitated, trainable=True), examples
    )
    losses = compute_losses(
        load_model(tiny_base, probe_device(), imitated), [each.rows[0] for each in examples]
    )
    assert [each.reference[0] for each in of_adapter] == pytest.approx(
        [-loss.loss * loss.trained_tokens for loss in losses], rel=1e-4
    )
    assert of_adapter[0].reference != pytest.approx(
        set_reference(load_model(tiny_base, probe_device()), examples)[0].reference, rel=1e-2
    )
