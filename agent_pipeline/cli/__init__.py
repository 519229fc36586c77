"""The command `agent-pipeline`, a thin layer over the other packages."""
