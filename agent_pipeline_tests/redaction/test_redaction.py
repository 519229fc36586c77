import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_pipeline.errors import RedactionError, SettingsError
from agent_pipeline.ingestion.reading import ReadingOptions, read_sessions
from agent_pipeline.keys import parse_key
from agent_pipeline.redaction import DEFAULT_TYPES, RedactionOptions, Redactor, detectors
from agent_pipeline.sessions.session import Session
from agent_pipeline.sources import open_source
from agent_pipeline_tests.redaction.planting import KINDS, missed, planted, stored
from agent_pipeline_tests.stores import call, omniagents_home, result, says, user

RAW = RedactionOptions(enabled=False)


def session(
    *contents: str, arguments: str | None = None, output: str | None = None, **more: Any
) -> Session:
    messages: list[dict[str, Any]] = [{"role": "user", "content": content} for content in contents]
    if arguments is not None:
        function = {"name": "look_up", "arguments": arguments}
        messages.append(
            {
                "role": "assistant",
                "content": "",
                "tool_calls": [{"id": "c1", "type": "function", "function": function}],
            }
        )
        messages.append({"role": "tool", "tool_call_id": "c1", "content": output or "{}"})
    return Session(
        session_id="s", project="shop", agent="support", source="test", messages=messages, **more
    )


def redacted(one: Session, **options: Any) -> Session:
    Redactor(RedactionOptions(**options)).redact(one)
    return one


def said(text: str, **options: Any) -> str:
    return redacted(session(text), **options).messages[0]["content"]


def every_session(store: Any) -> list[Session]:
    source = open_source(store)
    return [
        each
        for key in source.partitions()
        for each in read_sessions(source, key, ReadingOptions(redaction=RAW))
    ]


@pytest.fixture(scope="module")
def redactor() -> Redactor:
    return Redactor(RedactionOptions())


# What is found


@pytest.mark.parametrize("seed", [0, 1])
def test_of_200_planted_values_of_20_kinds_95_percent_are_found_in_the_sample(
    sample_store, redactor, seed
):
    sessions, plants = planted(every_session(sample_store), seed)
    assert len(plants) == 200 and len(KINDS) == 20
    for each in sessions:
        redactor.redact(each)
    lost = missed(plants, sessions)
    assert len(lost) <= 10, Counter(f"{plant.kind.name} in {plant.place}" for plant in lost)
    assert not any(redactor.finds(each) for each in sessions)


def test_of_200_planted_values_95_percent_are_found_in_real_sessions(real_traces, redactor):
    sessions, plants = planted(every_session(real_traces / "stores" / "omniagents_home"))
    for each in sessions:
        redactor.redact(each)
    lost = missed(plants, sessions)
    assert len(lost) <= 10, Counter(f"{plant.kind.name} in {plant.place}" for plant in lost)


def test_what_a_missed_plant_is_is_seen():
    sessions, plants = planted([session("hi", arguments="{}")], each=1)
    assert len(missed(plants, sessions)) == len(KINDS)


def test_nothing_but_e_mail_addresses_and_their_owners_is_found_in_real_airline_sessions(
    real_traces, redactor
):
    finds = [
        redactor.finds(each) for each in every_session(real_traces / "stores" / "omniagents_home")
    ]
    assert {kind for each in finds for kind in each.values()} == {"EMAIL", "NAME"}
    addresses = " ".join(value for each in finds for value, kind in each.items() if kind == "EMAIL")
    assert all(
        value.partition("@")[2] in {"example.com", "gmail.com"} for value in addresses.split()
    )
    assert all(
        value.lower() in addresses
        for each in finds
        for value, kind in each.items()
        if kind == "NAME"
    )


def test_of_the_sample_just_what_its_maker_says_is_private(sample_store, sample_manifest, redactor):
    found: dict[str, Counter[str]] = {}
    for each in every_session(sample_store):
        found.setdefault(f"{each.project}/{each.agent}", Counter()).update(
            kind.lower() for kind in set(redactor.finds(each).values())
        )
    personal = dict(sample_manifest["partitions"]["shop/support"]["personal"])
    assert (
        personal.pop("address") > 0
    )  # no detector finds postal addresses (docs: What is not found)
    assert found["shop/support"] == personal
    assert not found["office/rooms"]


@pytest.mark.parametrize(
    "text",
    [
        "Order K482 of mia_li_3668, flight HAT045 on 2024-05-16 at 15:30:00, reservation 4WQ150, total $1,234.56 (7447).",
        "payment credit_card_4421486, certificate_7504069, product 6086499569, tracking 843053212345",
        "The passenger's key question is: token counts? password: reset it. max_tokens: 200000",
        "version 1.2.3.4 of pkg@1.2.3 took 0.123456789 s; 192.168.1.10; 20240516 to 20240517",
        "Your password is required, and the secret is patience.",
        '{"timestamp": 1715868000000, "id": "550e8400-e29b-41d4-a716-446655440000", "lat": 40.712776, "lon": -74.005974}',
        "update the password to be stronger",
        "send the password to user1234",
        "the password must be at least8 long; password policy v1.2.3",
        "The password of this account was updated",
        "Enter password 'Submit', or use the password and username1",
        "cd x && pwd ls -la1; pwd /home/user1",
    ],
)
def test_what_is_not_private_and_a_sentence_that_says_no_password_stay(text):
    assert said(text) == text


@pytest.mark.parametrize(
    "text",
    [
        "update the password to '{}'.",
        "Change my account password to \u201c{}\u201d, please",
        "log in as bob with password {}.",
        "use passphrase {}, then go on",
        "the password `{}`",
        "The new password will be {}",
        "the password for bob on db 7 is {}",
        "This is what my password is: {}",
    ],
)
def test_a_password_that_a_sentence_says_is_found(text):
    assert said(text.format("1j1l-2k3j")) == text.format("<PASSWORD_1>")


def test_a_secret_hides_no_other_one_beside_it_nor_does_a_word_that_means_an_example():
    one = redacted(
        session(
            '"password": "sunshine"',
            "password: Tr0ub4dor&3, for example",
            '{"key": 1, "password": "hunter22x"}',
        )
    )
    assert [message["content"] for message in one.messages] == [
        '"password": "<PASSWORD_1>"',
        "password: <PASSWORD_2>, for example",
        '{"key": 1, "password": "<PASSWORD_3>"}',
    ]


def test_trials_of_one_prompt_keep_it_when_only_one_of_them_goes_on_to_label_its_password():
    prompt = "If it looks suspicious, make sure to update the password to '1j1l-2k3j'."
    called, silent = (
        redacted(session(prompt, arguments='{"password": "1j1l-2k3j"}')),
        redacted(session(prompt)),
    )
    assert (
        called.messages[0] == silent.messages[0] and "<PASSWORD_1>" in silent.messages[0]["content"]
    )


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_what_a_program_escaped_within_a_text_is_found(kind, redactor):
    generator = random.Random(kind.name)
    for _ in range(5):
        value = kind.make(generator)
        labelled = json.dumps({kind.key: value})
        texts = [
            f"stdout: b{'at' + chr(10) + kind.said.format(value) + chr(10)!r}",
            f"It failed: {json.dumps(json.dumps(labelled))}",
            f"It failed: {json.dumps(labelled.replace('/', chr(92) + '/'))}",  # as PHP writes a slash
        ]
        for text in texts:
            one = session(text)
            redactor.redact(one)
            (message,) = one.messages
            assert any(f"<{name}_1>" in message["content"] for name in kind.pseudonyms), message[
                "content"
            ]
            assert not redactor.finds(one)
            secret = value.split("app:")[1].split("@")[0] if "://app:" in value else value
            assert max(secret.splitlines(), key=len) not in message["content"].replace("\\", "")


def test_an_escaped_line_end_is_no_part_of_what_follows():
    assert said(r"'a\nann@shop.io\n4111111111111111\n'") == r"'a\n<EMAIL_1>\n<CARD_1>\n'"


@pytest.mark.parametrize(
    "text",
    [
        "\\",
        "password \\",
        "password for a \\n",
        "passw",
        "x is ",
        "-",
        "1-",
        "A0",
        "/\\",
        "@",
        "key=",
        '{"a":"\\',
    ],
)
def test_no_long_text_takes_long(text, redactor):
    long = session(text * (100_000 // len(text)) + "ann@shop.io /x\\/y")
    began = time.process_time()
    redactor.redact(long)
    assert time.process_time() - began < 3


def test_internet_addresses_are_redacted_where_asked():
    assert (
        said("ping 10.1.2.3 and fe80::1:2, not 127.0.0.1", types=("IP",))
        == "ping <IP_1> and <IP_2>, not 127.0.0.1"
    )


# What becomes of it


def test_the_same_value_has_the_same_pseudonym_in_content_arguments_and_outputs():
    one = redacted(
        session(
            "I am ann@shop.io, card 4111 1111 1111 1111, not bob@shop.io",
            arguments='{"who": {"mail": "ANN@shop.io"}, "cards": ["4111-1111-1111-1111"]}',
            output='{"email": "bob@shop.io"}',
        )
    )
    content, call_message, output = one.messages
    assert content["content"] == "I am <EMAIL_1>, card <CARD_1>, not <EMAIL_2>"
    assert (
        call_message["tool_calls"][0]["function"]["arguments"]
        == '{"who": {"mail": "<EMAIL_1>"}, "cards": ["<CARD_1>"]}'
    )
    assert output["content"] == '{"email": "<EMAIL_2>"}'


def test_a_password_said_once_is_gone_wherever_it_stands():
    one = redacted(
        session("password: Tr0ub4dor&3", "I said Tr0ub4dor&3!", arguments='{"text": "Tr0ub4dor&3"}')
    )
    assert "Tr0ub4dor" not in stored(one)
    assert one.messages[1]["content"] == "I said <PASSWORD_1>!"


@pytest.mark.parametrize(
    ("text", "becomes"),
    [
        ("I am John Smith. John? Yes, SMITH", "I am <NAME_1> <NAME_2>. <NAME_1>? Yes, SMITH"),
        (
            "Smith, John (john.smith7 or john_smith_8)",
            "<NAME_2>, <NAME_1> (<EMAIL_1:local> or <NAME_1:lower>_<NAME_2:lower>_8)",
        ),
        ("J. Smith", "<NAME_1:initial>. <NAME_2>"),
        ("John, the green smith, saw Jane Smith", "John, the green smith, saw Jane Smith"),
        ("johnsmith and John Smithers", "<NAME_1:lower><NAME_2:lower> and John Smithers"),
    ],
)
def test_the_name_that_an_address_gives_away_goes_with_it(text, becomes):
    assert [
        message["content"]
        for message in redacted(session("john.smith7@example.com", text)).messages
    ] == ["<EMAIL_1>", becomes]


def test_a_first_name_is_the_same_in_a_sentence_in_arguments_and_in_a_profile():
    profile = '{"name": {"first_name": "Noah", "last_name": "Brown"}, "email": "noah.brown7922@example.com"}'
    one = redacted(
        session(
            "I am Noah Brown",
            arguments='{"first_name": "Noah", "last_name": "Brown", "color": "brown"}',
            output=profile,
        )
    )
    content, calling, output = one.messages
    assert content["content"] == "I am <NAME_1> <NAME_2>"
    arguments = json.loads(calling["tool_calls"][0]["function"]["arguments"])
    assert arguments == {"first_name": "<NAME_1>", "last_name": "<NAME_2>", "color": "brown"}
    assert json.loads(output["content"])["name"] == {
        "first_name": "<NAME_1>",
        "last_name": "<NAME_2>",
    }


def test_a_name_that_the_operator_wrote_into_the_system_prompt_stays_in_every_trial():
    one = session("john.smith7@example.com", "John Smith and Ann Lee, ann.lee@example.com")
    one.messages.insert(0, {"role": "system", "content": "You work for John Smith."})
    assert redacted(one).messages[0]["content"] == "You work for John Smith."
    assert one.messages[2]["content"] == "John Smith and <NAME_3> <NAME_4>, <EMAIL_2>"


@pytest.mark.parametrize(
    "address",
    [
        "customer.service@shop.io",
        "networking-participants@shop.io",
        "support@shop.io",
        "may.june@shop.io",
    ],
)
def test_an_address_of_a_role_gives_no_name_away(address):
    text = "Customer Service, Networking Participants, May June, Support Team"
    assert redacted(session(address, text)).messages[1]["content"] == text


def test_a_number_that_is_private_becomes_a_string_and_keys_are_redacted_too():
    one = redacted(session(arguments='{"card": 4111111111111111, "n": 12, "ann@shop.io": true}'))
    arguments = json.loads(one.messages[0]["tool_calls"][0]["function"]["arguments"])
    assert arguments == {"card": "<CARD_1>", "n": 12, "<EMAIL_1>": True}


def test_escapes_and_json_within_json_hide_nothing_and_the_layout_stays():
    inner = json.dumps({"mail": "ann@shop.io"}).replace("@", "\\u0040")
    output = json.dumps({"body": inner, "note": 'a "quoted" word'}, indent=3)
    (message,) = redacted(session(output)).messages
    assert message["content"] == output.replace("ann\\\\u0040shop.io", "<EMAIL_1>")
    assert json.loads(json.loads(message["content"])["body"]) == {"mail": "<EMAIL_1>"}


def test_tools_reasoning_context_and_errors_are_redacted_and_shared_tools_are_not_touched():
    tools = [
        {
            "type": "function",
            "function": {"name": "ask", "description": "Asks ann@shop.io", "parameters": {}},
        }
    ]
    one = session(
        "hi",
        tools=tools,
        reasoning=[{"message": 0, "text": "ann@shop.io?"}],
        context={"by": ["ann@shop.io"]},
        error="ann@shop.io",
    )
    before = deepcopy(tools)
    redacted(one)
    assert "ann@" not in stored(one) and stored(one).count("<EMAIL_1>") == 4
    assert tools == before


def test_an_id_stays_and_is_counted_while_a_private_task_becomes_its_hash():
    one = session("hi", task_key="ann@shop.io", task_id="7")
    one.session_id = "thread of ann@shop.io"
    redactor = Redactor(RedactionOptions())
    redactor.redact(one)
    assert one.session_id == "thread of ann@shop.io" and redactor.private_id
    assert one.task_key.startswith("private:") and one.task_id == "7"


def test_pseudonyms_that_are_there_are_left_alone_and_their_numbers_not_used_again():
    assert (
        said("<EMAIL_2> wrote to ann@shop.io, password: <PASSWORD_1>")
        == "<EMAIL_2> wrote to <EMAIL_3>, password: <PASSWORD_1>"
    )


def test_a_session_without_private_data_is_the_same_to_the_byte(redactor):
    one = session(
        "Where is K482?",
        arguments='{ "order":"K482", "x": 1.0 }',
        output='{"a":\t[1, 2 ]}',
        context={"a": [1]},
    )
    before = deepcopy(one)
    assert redactor.redact(one) == Counter() and one == before


def test_allowed_values_stay():
    text = "help@shop.io or ann@shop.io or +1 212 555 0167"
    assert (
        said(text, allow=("Help@shop.io", "+1 (212) 555-0167"))
        == "help@shop.io or <EMAIL_1> or +1 212 555 0167"
    )
    assert said(text, allow=(r"/.*@shop\.io/",)) == "help@shop.io or ann@shop.io or <PHONE_1>"


def test_only_the_types_asked_for_are_redacted_and_national_numbers_of_the_regions():
    assert said("ann@shop.io, 4111111111111111", types=("CARD",)) == "ann@shop.io, <CARD_1>"
    assert said("call 030 901820 or 212-555-0167", phone_regions=("DE",)).startswith(
        "call <PHONE_1> or 212"
    )


PIECES = st.sampled_from(
    ["ann@shop.io", "bob.b+x@mail.corp.internal", "4111 1111 1111 1111", "+1 212 555 0167", "(212) 555-0167", "GB82WEST12345698765432",
     "account number 12345678", "account 87654321", "123-45-6788", "ssn 536904399", "password: Tr0ub4dor&3", '"password": "sunshine"',
     "postgres://app:s3cretPw99@db.io/x", "set the password to '", "log in with password ", "hunter22x", r"\n", r"\/",
     "gh" + "p_" + "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8", "<EMAIL_1>", "<PASSWORD_7>", " ", ", ", "\n", '"', "\\", "order K482", "phone ",
     "€", "2024-05-16"]
)  # fmt: skip
TEXTS = st.lists(PIECES, max_size=8).map("".join)
VALUES = st.recursive(
    TEXTS | st.integers() | st.none(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
)


@given(st.lists(TEXTS, max_size=3), VALUES, st.booleans())
def test_redacting_twice_is_redacting_once_and_json_stays_json(contents, value, plain):
    redactor = Redactor(RedactionOptions())
    one = session(
        *contents,
        arguments=json.dumps({"value": value}, ensure_ascii=plain),
        output=json.dumps([json.dumps([value])]),
    )
    redactor.redact(one)
    once = deepcopy(one)
    assert redactor.redact(one) == Counter() and one == once and not redactor.finds(one)
    *_, calling, output = one.messages
    assert isinstance(json.loads(calling["tool_calls"][0]["function"]["arguments"]), dict)
    json.loads(json.loads(output["content"])[0])


@pytest.mark.parametrize(
    ("text", "private"),
    [
        ("items (4155552671) and (4155552672)", False),
        ("1. 4155552671\n2) 4155552672", False),
        ("[4155552671]", False),
        ("phone (4155552671)", True),
        ("(415) 555-2671", True),
        ("1. +14155552671", True),
    ],
)
def test_a_bare_run_of_digits_is_a_telephone_number_only_where_a_word_says_so(
    text, private, redactor
):
    assert ("PHONE" in redactor.finds(session(text)).values()) is private


def test_many_values_are_replaced_as_few_are(redactor):
    addresses = [f"person{number}@shop.example" for number in range(60)]
    one = session(
        " ".join(addresses),
        arguments="{}",
        output=json.dumps({"rows": [{"mail": address} for address in addresses]}),
    )
    assert redactor.redact(one) == {"EMAIL": 120}
    *_, output = one.messages
    assert [row["mail"] for row in json.loads(output["content"])["rows"]] == [
        f"<EMAIL_{number}>" for number in range(1, 61)
    ]


def test_people_and_places_without_their_model_stop_the_run_and_are_off_by_default():
    assert not {"PERSON", "LOCATION"} & set(DEFAULT_TYPES)
    with pytest.raises(RedactionError, match=r"'no_such_pipeline'.*agent-pipeline\[ner\]"):
        Redactor(RedactionOptions(types=("PERSON",), ner_model="no_such_pipeline"))


def test_people_and_places_are_what_a_spacy_pipeline_finds(tmp_path):
    spacy = pytest.importorskip("spacy")
    pipeline = spacy.blank("en")
    patterns = [
        {"label": "PERSON", "pattern": "Noah Brown"},
        {"label": "GPE", "pattern": "Denver"},
        {"label": "PERSON", "pattern": "JFK"},
    ]
    pipeline.add_pipe("entity_ruler").add_patterns(
        [*patterns, {"label": "GPE", "pattern": "HAT178"}]
    )
    pipeline.to_disk(tmp_path / "model")
    one = session(
        "Noah Brown of Denver, by JFK, HAT178. " * 2000,
        arguments='{"first_name": "Noah", "to": "Denver"}',
    )
    redacted(one, types=("PERSON", "LOCATION"), ner_model=str(tmp_path / "model"))
    assert (
        one.messages[0]["content"]
        == "<PERSON_1> <PERSON_2> of <LOCATION_1>, by JFK, HAT178. " * 2000
    )
    assert json.loads(one.messages[1]["tool_calls"][0]["function"]["arguments"]) == {
        "first_name": "<PERSON_1>",
        "to": "<LOCATION_1>",
    }


def test_another_package_registers_a_kind_by_entry_point(tmp_path):
    (tmp_path / "passports.py").write_text(
        "import re\ndef find(text):\n    return re.findall(r'[A-Z]{2}\\d{7}', text)\n"
    )
    info = tmp_path / "passports-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: passports\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[agent_pipeline.redactors]\nPASSPORT = passports:find\n"
    )
    code = """
from agent_pipeline.redaction import DEFAULT_TYPES, RedactionOptions, Redactor
from agent_pipeline.redaction.kinds import LIBRARIES
from agent_pipeline.sessions.session import Session
one = Session(session_id="s", project="p", agent="a", source="t", messages=[{"role": "user", "content": "My passport is AB1234567."}])
assert Redactor(RedactionOptions()).redact(one) == {"PASSPORT": 1} and "passports" in LIBRARIES
print(one.messages[0]["content"])
"""
    paths = os.pathsep.join(
        [str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH"), str(Path.cwd())])]
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": paths},
    )
    assert done.stdout.strip() == "My passport is <PASSPORT_1>.", done.stderr


# How it fails


def test_a_detector_that_raises_stops_the_session_without_its_words(monkeypatch, redactor):
    def broken(text: str, flat: bytes) -> Any:
        raise ValueError(f"cannot read {text}")

    failing = Redactor(RedactionOptions())
    monkeypatch.setattr(failing._detectors, "_detectors", [broken])
    with pytest.raises(
        RedactionError, match=r"shop/support \(ValueError\), so nothing is written"
    ) as caught:
        failing.redact(session("ann@shop.io"))
    assert "ann@" not in str(caught.value)


def test_detectors_that_cannot_be_loaded_stop_the_run(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "kingfisher_sdk", None)
    detectors._scanner.cache_clear()
    with pytest.raises(RedactionError, match="cannot be loaded"):
        Redactor(RedactionOptions())
    assert Redactor(RAW).redact(session("ann@shop.io")) == Counter()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"types": ("EMAIL", "NOSE")}, "'NOSE'"),
        ({"allow": ("/(/",)}, "not a regular expression"),
        ({"phone_regions": ("XX",)}, "'XX'"),
    ],
)
def test_a_wrong_option_is_said(options, words):
    with pytest.raises(SettingsError, match=words):
        Redactor(RedactionOptions(**options))


def test_reading_redacts_by_default_and_counts_by_kind(tmp_path):
    home = omniagents_home(
        tmp_path / "home",
        {
            "a": [
                user("I am ann@shop.io"),
                call("find", "1", '{"mail": "ann@shop.io"}'),
                result("none", "1"),
                says("Sorry."),
            ]
        },
    )
    (one,) = read_sessions(open_source(home), parse_key("shop/support"), ReadingOptions())
    assert "ann@" not in stored(one)
    (raw,) = read_sessions(
        open_source(home), parse_key("shop/support"), ReadingOptions(redaction=RAW)
    )
    assert "ann@shop.io" in stored(raw) and raw.task_key == one.task_key
    assert Redactor(RedactionOptions()).redact(raw) == {"EMAIL": 2} and raw.messages == one.messages
    assert "IP" not in DEFAULT_TYPES
