"""What the base answers itself, as rows of its training."""

import pytest

from agent_pipeline.evaluation import canaries
from agent_pipeline.progress import silent
from agent_pipeline.training.adapter import train_adapter
from agent_pipeline.training.identity import trained_from
from agent_pipeline.training.rehearsal import QUESTIONS, rehearsed
from agent_pipeline_tests.training.world import TRAINING, row

ROWS = [row(number) for number in range(4)]


class Parrot:
    """A model that says the same to each prompt, but does not end after a question about the sea, of which it says no whole sentence, or
    about a dog."""

    def __init__(self, tokenizer):
        self.tokenizer, self.asked = tokenizer, 0

    def generate(self, model, prompts, limits, stops, progress, text):
        self.asked += len(prompts)
        goes_on = {"the sea": "It is sea 1. and sea", "small dog": "Call it Rex. It barks"}
        written = []
        for prompt, limit in zip(map(self.tokenizer.decode, prompts), limits, strict=True):
            begun = next((text for word, text in goes_on.items() if word in prompt), "So be it.")
            tokens = self.tokenizer.encode(begun, add_special_tokens=False)
            written.append(tokens if begun == "So be it." else tokens + tokens[-1:] * (limit - len(tokens)))
        return written


@pytest.fixture
def parrot(tiny_tokenizer, monkeypatch):
    parrot = Parrot(tiny_tokenizer)
    monkeypatch.setattr("agent_pipeline.training.rehearsal.generate", parrot.generate)
    return parrot


def rehearse(parrot, new, ratio):
    return rehearsed(None, parrot.tokenizer, ROWS, {parrot.tokenizer.eos_token_id}, new, ratio, 512, silent)


def test_no_canary_is_rehearsed():
    assert len(set(QUESTIONS)) == len(QUESTIONS)
    assert not {each.casefold() for each in QUESTIONS} & {each.casefold() for each in canaries.QUESTIONS}


def test_the_bases_answers_have_their_share_and_half_of_them_an_agents_tools(parrot):
    encoded = rehearse(parrot, 360, 0.1)
    asked = [each for each in QUESTIONS if "the sea" not in each]
    assert [each.messages[1]["content"] for each in encoded] == asked[:40], "one has no whole sentence, and the next takes its place"
    answers = [each.messages[-1]["content"] for each in encoded]
    assert [text for text in answers if text != "So be it."] == ["Call it Rex."], "what is cut off ends with a whole sentence"
    texts = [parrot.tokenizer.decode(each.encoded.input_ids) for each in encoded]
    assert sum(ROWS[0]["tools"][0]["function"]["name"] in text for text in texts) == 20
    trained = [
        parrot.tokenizer.decode([token for token, counts in zip(each.encoded.input_ids, each.encoded.trained, strict=True) if counts])
        for each in encoded
    ]
    assert all(text.startswith(answer) for text, answer in zip(trained, answers, strict=True))


def test_a_question_is_asked_once_for_its_answers_with_tools_and_without(parrot):
    encoded = rehearse(parrot, 100_000, 0.1)
    assert parrot.asked == len(QUESTIONS) and len(encoded) == 2 * (len(QUESTIONS) - 1)
    assert len({tuple(each.encoded.input_ids) for each in encoded}) == len(encoded)


def test_without_a_share_nothing_is_asked(parrot):
    assert rehearse(parrot, 180, 0.0) == []
    assert not parrot.asked


def test_few_rows_have_32_answers_beside_them_but_no_more_than_there_are_rows(parrot):
    assert [len(rehearse(parrot, rows, 0.1)) for rows in (0, 5, 49, 360)] == [0, 5, 32, 40]


def test_rehearsal_changes_the_identity_and_its_absence_changes_nothing(tiny_base):
    without, with_it = (trained_from(ROWS, tiny_base, "template", TRAINING, rehearsal=share) for share in (0.0, 0.1))
    assert without == trained_from(ROWS, tiny_base, "template", TRAINING)
    assert with_it["rehearsal"]["ratio"] == 0.1 and "rehearsal" not in without


@pytest.mark.slow
def test_a_training_counts_what_it_rehearses_apart_from_its_rows(tiny_base, tmp_path, monkeypatch):
    monkeypatch.setattr("agent_pipeline.training.rehearsal._answers", lambda *args: ["So be it."] * len(args[3]))
    report = train_adapter(ROWS, tiny_base, TRAINING.changed(max_steps=1), tmp_path, rehearsal=0.5)
    assert report["rehearsed"] == 4 and report["rows"]["trained"] == 4
    assert report["row_ids"] == [each["row_id"] for each in ROWS]
