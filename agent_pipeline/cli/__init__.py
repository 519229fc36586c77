"""The command `agent-pipeline`: a thin layer over the rooms below."""
