"""The process that heavy work runs in: training, evaluation, losses, export; started by the Dagster assets through Dagster Pipes.

One process a task: torch's memory is given back when it ends, and the graph's own process stays light. A mistake of the user's comes
back as a sentence, not as a stack trace. The process ends when its parent does: a killed run leaves no trainer behind.
"""

import os
import threading
import time

from agent_pipeline.errors import PipelineError, disk_sentence
from agent_pipeline.progress import throttled
from agent_pipeline.tasks import TASKS


def main() -> None:
    """Run the task that the parent asked for and report its result, or its error, as one message."""
    from dagster_pipes import open_dagster_pipes

    _end_with_parent()
    for variable in ("HF_HUB_DISABLE_PROGRESS_BARS", "HF_DATASETS_DISABLE_PROGRESS_BARS", "TOKENIZERS_PARALLELISM"):
        os.environ.setdefault(variable, "false" if variable.startswith("TOK") else "1")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    with open_dagster_pipes() as pipes:
        try:
            result = TASKS[pipes.get_extra("task")](pipes.get_extra("params"), throttled(pipes.log.info))
        except PipelineError as error:
            result = {"error": str(error)}
        except OSError as error:
            if (sentence := disk_sentence(error)) is None:
                raise
            result = {"error": sentence}
        pipes.report_custom_message(result)


def _end_with_parent() -> None:
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


if __name__ == "__main__":
    main()
