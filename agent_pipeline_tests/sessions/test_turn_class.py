"""The classes of turns."""

from hypothesis import given
from hypothesis import strategies as st

from agent_pipeline.sessions import turn_class


@given(st.one_of(st.from_regex(turn_class._REQUEST), st.from_regex(turn_class._REFUSAL)))
def test_whatever_the_patterns_find_has_a_hint(text):
    assert any(hint in text for hint in turn_class._HINTS)
