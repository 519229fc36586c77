"""Links from Dagster to the pages."""

import pytest
from pydantic import ValidationError

from agent_pipeline.config.settings import Settings
from agent_pipeline.defs.metadata import page_link
from agent_pipeline.keys import PartitionKey

KEY = PartitionKey("shop", "support")


def test_link() -> None:
    """A link needs the address of the pages; without the setting, there is none."""
    assert page_link("", KEY, "sessions") == {}
    ((name, link),) = page_link("http://localhost:3010/", KEY, "sessions").items()
    assert (name, link.value) == ("sessions_page", "http://localhost:3010/shop/support/sessions")


@pytest.mark.parametrize("address", ["javascript:alert(1)", "localhost:3010", "http://a b"])
def test_address(address: str) -> None:
    with pytest.raises(ValidationError):
        Settings(pages_url=address)
