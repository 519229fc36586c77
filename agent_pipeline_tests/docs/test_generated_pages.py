"""Files of the documentation that are made from the code: they are current."""

from agent_pipeline_tests.docs import assets_page, cli_page, llms_txt


def test_llms_txt_has_every_page_with_its_first_sentence() -> None:
    assert llms_txt.PATH.read_text(encoding="utf-8") == llms_txt.render_llms_txt(), (
        "run `make docs`"
    )


def test_the_page_of_the_command_line_has_every_command() -> None:
    assert cli_page.PATH.read_text(encoding="utf-8") == cli_page.render_cli_page(), (
        "run `make docs`"
    )


def test_the_page_of_the_assets_has_every_asset_check_and_column() -> None:
    assert assets_page.PATH.read_text(encoding="utf-8") == assets_page.render_assets_page(), (
        "run `make docs`"
    )
