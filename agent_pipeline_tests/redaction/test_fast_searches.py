"""Fast searches return what the plain patterns return. Redaction would otherwise miss a value."""

import re

from hypothesis import given
from hypothesis import strategies as st

from agent_pipeline.redaction.detectors import _LONG_RUNS
from agent_pipeline.redaction.encoded import _may_be_encoded
from agent_pipeline.redaction.key_blocks import _BASE64, _written_in_base64
from agent_pipeline.redaction.long_runs import LongRuns
from agent_pipeline.redaction.names import _PAIR

PIECES = st.sampled_from(
    [
        *(
            "Q2FsbCBBbmEgYXQgNTU1LTAxOTk",
            "A" * 16,
            "a" * 15 + "Z",
            "Zm9v" * 12,
            "key-Id_0123456789AB",
        ),
        *(
            "call_0123456789ab",
            "https://a.example/x",
            "path.to:some/file=1",
            "é",
            "€",
            "密码",
            "\u017f",
        ),
        *("\n", " ", "=", "==", "@", "%", "+", "/", "-", "_", ".", ":", '"', "{", "0", "Ab"),
    ]
)
TEXTS = st.lists(PIECES, max_size=12).map("".join) | st.text(max_size=60)
NAMES = st.lists(
    st.sampled_from(
        [
            *("Noah", "Brown", "O'Neil", "ana", "Ä", "Éva", "A.", "7", "_", " ", "\u00a0", ", "),
            *("\n", '"first_name": "', '", "last_name": "', '"'),
        ]
    ),
    max_size=10,
).map("".join)
MARKS = [
    *("at]", "(a)", "at)", "dot]", "dot)", "at}", "dot}", "at>", "dot>", "\uff20"),
    *("%40", "&#64;", "&at;", "\\u0040", "\\n"),
]


def in_latin_1(text: str) -> bytes:
    return text.encode("latin-1", "replace")


@given(st.text("ab-. é€\n", max_size=40), st.integers(1, 5))
def test_long_runs(text: str, length: int) -> None:
    expected = [match.span() for match in re.finditer(rf"[ab-]{{{length},}}", text)]
    assert [*LongRuns(b"ab-", length).spans(in_latin_1(text))] == expected


@given(TEXTS)
def test_base64(text: str) -> None:
    expected = [match.group() for match in _BASE64.finditer(text)]
    assert [*_written_in_base64(text, in_latin_1(text))] == expected


@given(TEXTS)
def test_possible_keys(text: str) -> None:
    """A run after an @ or a percent sign is left out by its caller."""
    plain = re.compile(r"(?<![\w.:/+=@%-])[\w.:/+=-]{20,}+", re.ASCII)
    spans = [
        (start, end)
        for start, end in _LONG_RUNS.spans(in_latin_1(text))
        if text[max(0, start - 1) : start] not in ("@", "%")
    ]
    assert spans == [match.span() for match in plain.finditer(text)]


@given(NAMES)
def test_pairs_of_names(text: str) -> None:
    capital = r"[A-Z\u00c0-\u00de]"
    assert _PAIR.pattern.startswith(rf"(?P<one>{capital}(?<![^\W_].)")
    plain = _PAIR.pattern.replace(rf"{capital}(?<![^\W_].)", rf"(?<![^\W_]){capital}", 1)
    expected = [match.groupdict() for match in re.finditer(plain, text)]
    assert [match.groupdict() for match in _PAIR.finditer(text)] == expected


@given(st.lists(st.sampled_from([*MARKS, "at", "dot", "]", ")", "}", ">", "a", "%", " "])))
def test_encoded_characters(words: list[str]) -> None:
    text = "".join(words)
    has_code = re.search(r"%[0-9A-Fa-f]{2}|&#?[A-Za-z0-9]{1,32};|\\[unrt\"'/]", text)
    assert _may_be_encoded(text) == (bool(has_code) or any(mark in text for mark in MARKS[:10]))
