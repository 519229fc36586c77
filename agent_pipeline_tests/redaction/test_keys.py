"""Keys and tokens are found whatever punctuation stands around them."""

import random

import pytest

from agent_pipeline.redaction import RedactionOptions, Redactor
from agent_pipeline_tests.redaction.planting import stored
from agent_pipeline_tests.redaction.surroundings import KEYS, SURROUNDINGS
from agent_pipeline_tests.redaction.test_redaction import session


def test_keys_of_providers():
    """A key with a comma, a full stop or a bracket after it was written to every table."""
    redactor, missed = Redactor(RedactionOptions()), []
    for name, make in KEYS.items():
        generator = random.Random(name)
        for surrounding in SURROUNDINGS:
            key = make(generator)
            one = session(surrounding.format(key))
            redactor.redact(one)
            missed += [(name, surrounding)] if key[-12:] in stored(one) else []
    assert len(KEYS) == 40 and len(missed) <= len(KEYS) * len(SURROUNDINGS) / 100, missed


def test_harmless_long_words_with_punctuation():
    """Names of files, commits, hashes and slugs are no keys, whatever stands after them."""
    texts = [
        "commit 9fceb02d0ae598e95dc970b74767f19372d61af8, then (9fceb02d0ae598e95dc970b74767f19372d61af8).",
        "uuid 123e4567-e89b-12d3-a456-426614174000, 1Z999AA10123456784; build_2024_05_16_release_candidate!",
        "see the-quick-brown-fox-jumps-over-the-lazy-dog, test_a_very_long_name_of_a_function_1(), my-component-with-a-long-name.tsx",
        "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855.",
    ]
    assert not [
        finds for text in texts if (finds := Redactor(RedactionOptions()).finds(session(text)))
    ]


@pytest.mark.parametrize(
    "text",
    [
        '{"next_page_token": "CAEQAA8f3k2"}',
        '{"nextPageToken": "EAAaCFBUOkNBVQ12"}',
        'continuation_token: "abc12345678"',
        '"token_type": "bearer1"',
        '{"secret_name": "prod/db-2/pass"}',
        'api_key_variable = "OPENAI_API_KEY2"',
        "password_field = 'input2'",
    ],
)
def test_names_of_what_is_no_secret(text):
    """Tools that return a list page by page must still work."""
    assert not Redactor(RedactionOptions()).finds(session(text))


@pytest.mark.parametrize(
    "name", ["secret_name_password", "token_type_secret", "page_token_api_key", "password"]
)
def test_a_secret_whose_name_begins_like_another(name):
    """The end of a name says what its value is."""
    assert "hunter22x9" in Redactor(RedactionOptions()).finds(
        session(f'{{"{name}": "hunter22x9"}}')
    )
