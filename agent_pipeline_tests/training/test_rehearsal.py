"""What the base answers itself, as rows of its training."""

import pytest

from agent_pipeline.engine.generation import generate
from agent_pipeline.models.device import probe_device
from agent_pipeline.models.loading import load_model
from agent_pipeline.progress import silent
from agent_pipeline.promotion import sanity_questions
from agent_pipeline.training import rehearsal
from agent_pipeline.training.provenance import SftInput
from agent_pipeline.training.rehearsal import QUESTIONS, RehearsalAmount, rehearse
from agent_pipeline_tests.training.world import TRAINING, row, train_adapter

ROWS = [row(number) for number in range(4)]


class Parrot:
    """A model that answers "So be it.", and never ends after a question that names a capital."""

    def __init__(self, renderer):
        self.renderer, self.tokenizer, self.asked = renderer, renderer.tokenizer, 0

    def answers(self, prompts, limits, stops):
        self.asked += len(prompts)
        assert self.tokenizer.eos_token_id in stops
        said = self.tokenizer.encode("So be it.", add_special_tokens=False)
        return [
            [*said, *said * limit][:limit]
            if "the capital" in self.tokenizer.decode(prompt)
            else said
            for prompt, limit in zip(prompts, limits, strict=True)
        ]


@pytest.fixture
def parrot(tiny_renderer, monkeypatch):
    monkeypatch.setattr(
        rehearsal,
        "generate",
        lambda model, prompts, limits, stops, *_: model.answers(prompts, limits, stops),
    )
    return Parrot(tiny_renderer)


def rehearse_parrot(parrot, new, ratio):
    amount = RehearsalAmount(new, ratio)
    return rehearse(parrot, parrot.renderer, ROWS, amount, 512, silent)


def test_no_canary_is_rehearsed():
    assert len(set(QUESTIONS)) == len(QUESTIONS)
    assert not {each.casefold() for each in QUESTIONS} & {
        each.casefold() for each in sanity_questions.QUESTIONS
    }


def test_the_bases_answers_have_their_share_and_half_of_them_an_agents_tools(parrot):
    encoded = rehearse_parrot(parrot, 360, 0.1)
    asked = [each.messages[1]["content"] for each in encoded]
    assert len(asked) == len(set(asked)) == 40, "answers that end replace those that do not"
    assert set(asked) <= {each for each in QUESTIONS if "the capital" not in each}
    kinds = {each.split()[0] for each in asked}
    assert {"How", "Which", "Who", "Translate"} <= kinds, "the questions are of every kind"
    assert {each.messages[-1]["content"] for each in encoded} == {"So be it."}
    texts = [parrot.tokenizer.decode(each.encoded.input_ids) for each in encoded]
    assert sum(ROWS[0]["tools"][0]["function"]["name"] in text for text in texts) == 20
    trained = [
        parrot.tokenizer.decode(
            [
                token
                for token, counts in zip(each.encoded.input_ids, each.encoded.trained, strict=True)
                if counts
            ]
        )
        for each in encoded
    ]
    assert all(text.startswith("So be it.") for text in trained)


def test_a_question_is_asked_once_for_its_answers_with_tools_and_without(parrot):
    encoded = rehearse_parrot(parrot, 100_000, 0.1)
    ended = [each for each in QUESTIONS if "the capital" not in each]
    assert parrot.asked == len(QUESTIONS) and len(encoded) == 2 * len(ended)
    assert len({tuple(each.encoded.input_ids) for each in encoded}) == len(encoded)


def test_a_model_is_asked_by_greedy_search(tiny_base, tiny_renderer, adapter_dir):
    model, stop = (
        load_model(tiny_base, probe_device(), adapter_dir),
        tiny_renderer.tokenizer.eos_token_id,
    )
    asked = [rehearsal._ask(question) for question in QUESTIONS[:3]]
    answers = rehearsal._answer(model, tiny_renderer, asked, silent)
    for messages, answer in zip(asked, answers, strict=True):
        (written,) = generate(
            model, [tiny_renderer.prompt_ids(messages, [])], [rehearsal.MAX_NEW_TOKENS], {stop}
        )
        assert answer == (
            tiny_renderer.tokenizer.decode(written).strip()
            if len(written) < rehearsal.MAX_NEW_TOKENS
            else ""
        )


def test_without_a_share_nothing_is_asked(parrot):
    assert rehearse_parrot(parrot, 180, 0.0) == []
    assert not parrot.asked


def test_few_rows_have_32_answers_beside_them_but_no_more_than_there_are_rows(parrot):
    assert [len(rehearse_parrot(parrot, rows, 0.1)) for rows in (0, 5, 49, 360)] == [0, 5, 32, 40]


def test_rehearsal_changes_the_identity_and_its_absence_changes_nothing(tiny_base):
    without, with_it = (
        SftInput(ROWS, tiny_base, TRAINING, rehearsal=share).trained_from for share in (0.0, 0.1)
    )
    assert without == SftInput(ROWS, tiny_base, TRAINING).trained_from
    assert with_it["rehearsal"]["ratio"] == 0.1 and "rehearsal" not in without


@pytest.mark.slow
def test_a_training_counts_what_it_rehearses_apart_from_its_rows(tiny_base, tmp_path, monkeypatch):
    monkeypatch.setattr(
        "agent_pipeline.training.rehearsal._answer", lambda *args: ["So be it."] * len(args[2])
    )
    report = train_adapter(ROWS, tiny_base, TRAINING.changed(max_steps=1), tmp_path, rehearsal=0.5)
    assert report.rehearsed == 4 and report.rows["trained"] == 4
    assert report.row_ids == [each["row_id"] for each in ROWS]
