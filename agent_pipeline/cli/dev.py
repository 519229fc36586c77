"""`dagster dev` with the web server of this package: `python -m agent_pipeline.cli.dev`.

The options are those of `dagster dev`.
"""

import subprocess
from collections.abc import Sequence
from typing import Any

from dagster._cli import dev

WEBSERVER = "agent_pipeline.cli.webserver"


def main() -> None:
    """Run the web server and the daemon until one of them ends."""
    open_process = vars(dev)["open_ipc_subprocess"]

    def open_own_process(command: Sequence[str], **options: Any) -> "subprocess.Popen[Any]":
        result: subprocess.Popen[Any] = open_process(
            [WEBSERVER if part == "dagster_webserver" else part for part in command], **options
        )
        return result

    vars(dev)["open_ipc_subprocess"] = open_own_process
    dev.dev_command()


if __name__ == "__main__":
    main()
