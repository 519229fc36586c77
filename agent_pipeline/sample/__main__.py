"""`python -m agent_pipeline.sample [DIR] [--seed N]`: regenerate the sample sessions."""

import argparse
import sys
from pathlib import Path

from agent_pipeline.errors import PipelineError
from agent_pipeline.sample.draw import DEFAULT_SEED
from agent_pipeline.sample.write import write_sample

HERE = Path(__file__).resolve().parents[2] / "data" / "sample"


def main() -> int:
    """Write the sample and print the number of sessions of each agent."""
    parser = argparse.ArgumentParser(
        prog="python -m agent_pipeline.sample", description="Make the sample sessions."
    )
    parser.add_argument(
        "home",
        nargs="?",
        type=Path,
        default=HERE,
        metavar="DIR",
        help="default: data/sample of the repo",
    )
    parser.add_argument("--seed", type=int, default=DEFAULT_SEED, help="default: %(default)s")
    options = parser.parse_args()
    try:
        truth = write_sample(options.home, options.seed)
    except PipelineError as error:
        print(error, file=sys.stderr)
        return 1
    for partition, counts in truth["partitions"].items():
        print(
            "{}: {sessions} sessions, {acceptable} acceptable, {clean_acceptable} of them clean".format(
                partition, **counts
            )
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
