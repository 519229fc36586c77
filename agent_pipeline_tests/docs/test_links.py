"""Links of pages outside the site, which MkDocs does not check, and links to the repository."""

import re
from pathlib import Path

import pytest

from agent_pipeline_tests.docs.pages import REPOSITORY, check_no_failures, name_page

PAGES = [
    REPOSITORY / "README.md",
    REPOSITORY / "benchmarks" / "README.md",
    REPOSITORY / "data" / "sample" / "README.md",
    REPOSITORY / "docs" / "llms.txt",
]
LINK = re.compile(r"\]\((?P<path>[^)\s#]*)(?:#(?P<anchor>[^)\s]+))?\)")
NAMED_PAGE = re.compile(r"(?P<path>docs/[\w/-]+\.md)(?:#(?P<anchor>[\w-]+))?")
ANCHOR = re.compile(r'<a id="([^"]+)"')


def list_anchors(text: str) -> set[str]:
    """Return the anchors of a page: its headings, as GitHub and MkDocs name them, and its marks."""
    anchors = set(ANCHOR.findall(text))
    for heading in re.findall(r"^#+ +(.+)$", text, re.MULTILINE):
        words = re.sub(r"[^\w\s-]", "", heading.lower()).strip()
        anchors.add(re.sub(r"\s+", "-", words))
    return anchors


def has_anchor(page: Path, anchor: str) -> bool:
    """Return whether a page has an anchor. Every file has an empty anchor."""
    if not anchor or page.suffix != ".md":
        return True
    return anchor in list_anchors(page.read_text(encoding="utf-8"))


def list_source_files() -> list[Path]:
    """Return the files of the package, the benchmarks and the deployment that are text."""
    folders = [REPOSITORY / name for name in ("agent_pipeline", "benchmarks", "deploy")]
    files = [path for folder in folders for path in folder.rglob("*") if path.is_file()]
    text_endings = {".py", ".toml", ".yaml", ".jinja", ".html", ".service", ".example"}
    return [REPOSITORY / "Makefile", REPOSITORY / "pipeline.toml"] + [
        path for path in files if path.suffix in text_endings or path.name == "Dockerfile"
    ]


@pytest.mark.parametrize("path", PAGES, ids=name_page)
def test_links_lead_to_files_and_headings(path: Path) -> None:
    failures = []
    for link in LINK.finditer(path.read_text(encoding="utf-8")):
        if "://" in link["path"] or link["path"].startswith("mailto:"):
            continue
        target = path.parent / link["path"] if link["path"] else path
        if not target.exists():
            failures.append(f"{name_page(path)}: there is no {link['path']}")
        elif not has_anchor(target, link["anchor"] or ""):
            failures.append(f"{name_page(path)}: {link['path']} has no #{link['anchor']}")
    check_no_failures(failures)


def test_pages_that_code_and_deployment_files_name_exist() -> None:
    failures = []
    for path in list_source_files():
        for page in NAMED_PAGE.finditer(path.read_text(encoding="utf-8")):
            target = REPOSITORY / page["path"]
            if not target.exists():
                failures.append(f"{name_page(path)}: there is no {page['path']}")
            elif not has_anchor(target, page["anchor"] or ""):
                failures.append(f"{name_page(path)}: {page['path']} has no #{page['anchor']}")
    check_no_failures(failures)
