"""The converter is needed here as in the tests of the export."""

from agent_pipeline_tests.export.conftest import needs_converter

__all__ = ["needs_converter"]
