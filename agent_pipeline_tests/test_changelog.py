"""The changelog on GitHub and the page of the site are the same text."""

from agent_pipeline_tests.conftest import REPOSITORY


def test_the_page_is_a_copy_of_the_changelog() -> None:
    changelog = (REPOSITORY / "CHANGELOG.md").read_text("utf-8")
    page = (REPOSITORY / "docs" / "changelog.md").read_text("utf-8")
    assert page == changelog.replace("](docs/", "](")
