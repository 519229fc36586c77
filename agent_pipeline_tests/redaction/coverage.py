"""The share of secrets and personal data that redaction finds, and the forms that it misses.

`python -m agent_pipeline_tests.redaction.coverage` writes the tables of docs/reference/private-data.md.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from agent_pipeline.redaction import RedactionOptions, Redactor
from agent_pipeline_tests.redaction.forms import DOC, SEEDS, Form, found
from agent_pipeline_tests.redaction.harmless import HARMLESS, harmless_texts
from agent_pipeline_tests.redaction.personal_forms import PERSONAL_FORMS, REGIONS
from agent_pipeline_tests.redaction.secret_forms import SECRET_FORMS
from agent_pipeline_tests.redaction.test_redaction import session

BEGIN, END = "<!-- coverage -->\n", "<!-- /coverage -->"
PLACES = ("user", "arguments", "result")


class FormCoverage(NamedTuple):
    """A form, and how many of its values are found."""

    form: Form
    found: int


def measure(forms: Sequence[Form], redactor: Redactor) -> list[FormCoverage]:
    """Return how many values of each form are found: `SEEDS` values in each place."""
    return [
        FormCoverage(
            form,
            sum(
                bool(found(form, place, seed, redactor))
                for place in PLACES
                for seed in range(SEEDS)
            ),
        )
        for form in forms
    ]


def share_found(coverage: Sequence[FormCoverage]) -> float:
    return sum(form.found for form in coverage) / (len(coverage) * SEEDS * len(PLACES))


def redactor_of_regions() -> Redactor:
    return Redactor(RedactionOptions(phone_regions=REGIONS))


def false_positives(redactor: Redactor, count: int = 10) -> list[tuple[str, dict[str, str]]]:
    """Return the harmless texts in which something is found, with what is found; `count` texts of each template."""
    return [
        (text, finds)
        for _, text in harmless_texts(count=count)
        if (finds := redactor.finds(session(text)))
    ]


def table() -> str:
    """Return the Markdown table of both lists, and the forms that are not always found."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    values_per_form = SEEDS * len(PLACES)
    lists = {
        "secrets": measure(SECRET_FORMS, Redactor(RedactionOptions())),
        f"personal data, with {len(REGIONS)} countries in `phone_regions`": measure(
            PERSONAL_FORMS, redactor_of_regions()
        ),
    }
    yield "| list | forms | forms whose values are all found | share of all values that is found |"
    yield "|---|---:|---:|---:|"
    for name, coverage in lists.items():
        always = sum(form.found == values_per_form for form in coverage)
        yield f"| {name} | {len(coverage)} | {always} | {share_found(coverage):.1%} |"
    wrong, texts = len(false_positives(redactor_of_regions())), 10 * len(HARMLESS)
    yield ""
    yield f"Redaction also searched {texts:,} harmless values of {len(HARMLESS)} kinds, such as order numbers."
    yield f"It replaced {wrong} of these values by mistake ({wrong / texts:.2%})."
    yield ""
    yield f"| form with values that are not found | found, of {values_per_form} values |"
    yield "|---|---:|"
    for coverage in lists.values():
        for form, count in coverage:
            if count < values_per_form:
                yield f"| `{form.title}`{form.note and f' ({form.note})'} | {count} |"


def main() -> None:
    """Write the tables into the docs."""
    before, _, rest = DOC.read_text(encoding="utf-8").partition(BEGIN)
    DOC.write_text(before + BEGIN + table() + END + rest.partition(END)[2], encoding="utf-8")


if __name__ == "__main__":
    main()
