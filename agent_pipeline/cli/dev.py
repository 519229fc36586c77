"""`dagster dev` with the web server of this package: `python -m agent_pipeline.cli.dev`.

The options are those of `dagster dev`.
"""

from agent_pipeline._compat.dagster import run_dev_command

if __name__ == "__main__":
    run_dev_command("agent_pipeline.cli.webserver")
