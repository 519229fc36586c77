"""The converter is needed here as in the tests of the export."""

from agent_pipeline_tests.export.conftest import (
    converter_process,
    forked_converter,
    needs_converter,
)

__all__ = ["converter_process", "forked_converter", "needs_converter"]
