"""Files of the documentation that are made from the code: they are current."""

from agent_pipeline_tests.docs import llms_txt


def test_llms_txt_has_every_page_with_its_first_sentence() -> None:
    assert llms_txt.PATH.read_text(encoding="utf-8") == llms_txt.render_llms_txt(), (
        "run python -m agent_pipeline_tests.docs.llms_txt"
    )
