"""docs/llms.txt: every page with its first sentence. `python -m agent_pipeline_tests.docs.llms_txt`.

The file follows https://llmstxt.org. Its sections are those of the navigation in mkdocs.yml.
"""

from collections.abc import Iterator
from typing import Any

import yaml

from agent_pipeline_tests.docs.pages import DOCS, REPOSITORY, list_paragraphs, split_sentences

PATH = DOCS / "llms.txt"
UNGROUPED = "More"
"""The section of pages that the navigation does not group."""

Page = tuple[str, str]
"""The title of a page, and its path below docs. The title is empty if the page names itself."""


def read_site() -> dict[str, Any]:
    """Return the settings of the site."""

    class Loader(yaml.SafeLoader):
        """A loader that reads the tags of Python as plain text."""

    Loader.add_multi_constructor("tag:yaml.org,2002:python/", lambda *_: None)
    site: dict[str, Any] = yaml.load(
        (REPOSITORY / "mkdocs.yml").read_text(encoding="utf-8"), Loader
    )
    return site


def list_nav_pages(entry: Any) -> Iterator[Page]:
    """Yield the pages of an entry of the navigation, and of the entries in it."""
    if isinstance(entry, str):
        yield "", entry
    elif isinstance(entry, list):
        for part in entry:
            yield from list_nav_pages(part)
    else:
        for title, part in entry.items():
            if isinstance(part, str):
                yield title, part
            else:
                yield from list_nav_pages(part)


def describe_page(title: str, path: str) -> str:
    """Return a line with the title, the path and the first sentence of a page."""
    text = (DOCS / path).read_text(encoding="utf-8")
    heading = text.partition("\n")[0].removeprefix("# ").strip()
    paragraphs = list_paragraphs(text)
    sentence = split_sentences(paragraphs[0])[0].strip() if paragraphs else ""
    return f"- [{title or heading}]({path}): {sentence}"


def render_llms_txt() -> str:
    """Return the text of docs/llms.txt."""
    site = read_site()
    sections: dict[str, list[str]] = {}
    for entry in site["nav"]:
        title, content = next(iter(entry.items()))
        section = UNGROUPED if isinstance(content, str) else title
        sections.setdefault(section, []).extend(
            describe_page(*page) for page in list_nav_pages(entry)
        )
    ungrouped = sections.pop(UNGROUPED, [])
    lines = [f"# {site['site_name']}", "", f"> {site['site_description']}", "", *ungrouped]
    for section, pages in sections.items():
        lines += ["", f"## {section}", "", *pages]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PATH.write_text(render_llms_txt(), encoding="utf-8")
