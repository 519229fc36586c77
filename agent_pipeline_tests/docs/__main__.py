"""Write the generated files of the documentation: `python -m agent_pipeline_tests.docs`."""

from agent_pipeline.config import reference
from agent_pipeline_tests.docs import assets_page, cli_page, llms_txt


def write_pages() -> None:
    """Write the pages of settings, commands and assets, and then llms.txt, which quotes them."""
    page = reference.PAGE.read_text(encoding="utf-8")
    reference.PAGE.write_text(reference.update_page(page), encoding="utf-8")
    cli_page.PATH.write_text(cli_page.render_cli_page(), encoding="utf-8")
    assets_page.PATH.write_text(assets_page.render_assets_page(), encoding="utf-8")
    llms_txt.PATH.write_text(llms_txt.render_llms_txt(), encoding="utf-8")


if __name__ == "__main__":
    write_pages()
