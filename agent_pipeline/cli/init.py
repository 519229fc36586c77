"""The command init: a settings file for the sessions of a store, and a report on the sessions."""

import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer
from rich.console import Console

from agent_pipeline.cli.doctor import find_exit_code, make_doctor, note_progress, propose_next
from agent_pipeline.cli.registry import print_next
from agent_pipeline.cli.words import with_noun
from agent_pipeline.errors import PipelineError, SettingsError

if TYPE_CHECKING:
    from agent_pipeline.config.settings import Settings
    from agent_pipeline.config.starting_file import Choice, KeptSetting, ProposedFile
    from agent_pipeline.readiness.base_choice import BaseChoice
    from agent_pipeline.readiness.proposal import Answers, JudgeChoice
    from agent_pipeline.readiness.report import Readiness

console = Console()

BAD_INPUT = 2
MAX_KEPT = 5
"""Maximum number of kept settings that are named."""


def init(
    path: Annotated[
        str,
        typer.Argument(
            help="A store (a file, a folder or a URL), or a folder that contains several stores."
        ),
    ],
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Use the default answer to every question.")
    ] = False,
) -> None:
    """Look at a store, write a pipeline.toml with comments, and say whether a model can be trained.

    The command asks at most five questions. An existing pipeline.toml keeps its values, comments
    and order: only missing settings are added. The exit codes are the same as for `doctor`.
    """
    try:
        report = write_settings(path, yes or not is_interactive())
    except PipelineError as error:
        typer.echo(f"agent-pipeline: {error}", err=True)
        raise typer.Exit(BAD_INPUT) from error
    print_next(propose_next(report))
    raise typer.Exit(find_exit_code(report))


def is_interactive() -> bool:
    """Return whether a person can answer questions."""
    return sys.stdin.isatty()


def write_settings(path: str, takes_defaults: bool) -> "Readiness":
    """Write the settings file for a store, and print what was written and the report.

    Args:
        path: The store.
        takes_defaults: Whether no question is asked.

    Raises:
        PipelineError: The store cannot be read, or the settings file cannot be changed.
    """
    from agent_pipeline.readiness.base_choice import choose_base
    from agent_pipeline.readiness.proposal import LABELS_FOLDER, propose_choices, propose_remedies
    from agent_pipeline.readiness.screen import describe_readiness

    file = find_file()
    examiner = make_doctor(path)
    first_report = examiner.report(note_progress)
    if not first_report.agents:
        raise SettingsError(
            " ".join(first_report.errors) or f"There are no sessions in {path}: check the path."
        )
    base = choose_base(first_report.agents, examiner.training_machine, examiner.count_tokens)
    is_chosen = "base_model" in examiner.settings.model_fields_set
    if is_chosen and examiner.settings.base_model != base.base_model:
        base = msgspec.structs.replace(base, own={})  # the user's own choice is for all agents
    answers = ask_questions(first_report, base, takes_defaults)
    choices = propose_choices(
        first_report,
        name_stores(path, examiner.settings.store, file.parent),
        answers,
    )
    is_new = not file.exists()
    report = first_report
    added: list[Choice] = []
    kept: list[KeptSetting] = []
    first_choices = choices
    while choices:
        proposed = add_choices(file, choices)
        added += proposed.added
        kept += [setting for setting in proposed.kept if setting not in kept]
        if any(choice.name == "labels" for choice in proposed.added):
            (file.parent / LABELS_FOLDER).mkdir(exist_ok=True)
        if changes_report(proposed.added, examiner.settings):
            examiner = replace(make_doctor(None), unknown=examiner.unknown, earlier=examiner)
            report = examiner.report(note_progress)
        elif choices is not first_choices:
            break
        choices = propose_remedies(report.agents)
    for line in describe_readiness(report):
        typer.echo(line)
    what = name_settings(added) or "nothing was missing"
    action = "written to" if is_new else "added to"
    console.print(f"\n{file}: {what} ({action} the file).", markup=False, soft_wrap=True)
    for setting in kept[:MAX_KEPT]:
        console.print(
            f"kept: {setting.name} = {setting.value!r} (proposal: {setting.proposed!r})",
            markup=False,
            highlight=False,
            soft_wrap=True,
        )
    if len(kept) > MAX_KEPT:
        others = with_noun(len(kept) - MAX_KEPT, "other setting")
        console.print(f"kept: {others} with a value of your own", highlight=False)
    return report


def name_settings(choices: Sequence["Choice"]) -> str:
    """Return the names of settings. The same setting of several agents is named once."""
    agents_by_setting: dict[str, list[str]] = {}
    for choice in choices:
        is_of_agent = choice.table[:1] == ("agents",)
        rest = [*choice.table[2:], choice.name] if is_of_agent else [*choice.table, choice.name]
        agents = agents_by_setting.setdefault(".".join(rest), [])
        if is_of_agent:
            agents.append(choice.table[1])
    names = []
    for name, agents in agents_by_setting.items():
        whose = agents[0] if len(agents) == 1 else f"{len(agents):,} agents"
        names.append(f"{name} of {whose}" if agents else name)
    return ", ".join(names)


def add_choices(file: Path, choices: Sequence["Choice"]) -> "ProposedFile":
    """Add the settings that a settings file lacks, and return what was added and what was kept.

    Raises:
        SettingsError: The file cannot be changed.
    """
    from agent_pipeline.config.starting_file import propose_file
    from agent_pipeline.storage.filesystem import write_atomically

    text = file.read_text(encoding="utf-8") if file.exists() else ""
    proposed = propose_file(text, choices, file)
    write_atomically(file, proposed.text.encode("utf-8"))
    return proposed


def changes_report(added: Sequence["Choice"], settings: "Settings") -> bool:
    """Return whether new settings change what a report says, so that it must be made again."""
    values = {"base_model": settings.base_model, "preset": settings.preset}
    return any(
        choice.table[:1] in (("agents",), ("split",))
        or (choice.name in values and values[choice.name] != choice.value)
        for choice in added
    )


def find_file() -> Path:
    """Return the settings file to write: the file of the environment, or one in this folder."""
    named = os.environ.get("AGENT_PIPELINE_CONFIG")
    return Path(named).resolve() if named else Path.cwd() / "pipeline.toml"


def name_stores(path: str, stores: str | Sequence[str], folder: Path) -> list[str]:
    """Return stores as the settings file names them.

    If the user gave a relative path, the stores are named relative to the folder of the file.
    """
    absolute = [stores] if isinstance(stores, str) else list(stores)
    is_relative = "://" not in path and not Path(path).expanduser().is_absolute()
    if not is_relative or path.startswith("~"):
        return absolute
    names = []
    for store in absolute:
        inside = Path(store).is_relative_to(folder)
        names.append(str(Path(store).relative_to(folder)) if inside else store)
    return names


def ask_questions(report: "Readiness", base: "BaseChoice", takes_defaults: bool) -> "Answers":
    """Ask the questions that the report leaves open, at most five, and return the answers.

    Args:
        report: The report, made without the proposed settings.
        base: The proposed base model.
        takes_defaults: Whether no question is asked.
    """
    from agent_pipeline.models.base_model import EMBEDDED
    from agent_pipeline.readiness.base_choice import BaseChoice
    from agent_pipeline.readiness.proposal import JUDGES, Answers, match_tools_files

    tools_files = match_tools_files(report.unknown, report.agents)
    if takes_defaults:
        return Answers(base=base, tools_files=tools_files)
    name = typer.prompt("Base model to train", default=base.base_model)
    if name != base.base_model:
        preset = "" if name == EMBEDDED or not report.machine.gpus else "gpu"
        base = BaseChoice(name, preset, "you chose it")
    patterns = [agent.tasks for agent in report.agents if agent.tasks.task_pattern]
    use_patterns = not patterns or typer.confirm(
        f"{sum(tasks.grouped for tasks in patterns):,} sessions look like trials of "
        f"{sum(tasks.grouped_tasks for tasks in patterns):,} tasks. Use the task patterns?",
        default=True,
    )
    unjudged = sum(agent.judges.verdicts.get("nobody", 0) for agent in report.agents)
    ranges = {
        name: f"{name} from {facts.low:g} to {facts.high:g}"
        for agent in report.agents
        for name, facts in agent.judges.undeclared_metrics.items()
    }
    names = sorted(ranges)
    metrics: dict[str, str] = {}
    if unjudged and names:
        metrics = parse_metrics(
            typer.prompt(
                f"Metrics that decide the verdict ({', '.join(ranges[name] for name in names)}), "
                "as name=higher or name=lower; no answer: none",
                default="",
                show_default=False,
            ),
            names,
        )
    judge: JudgeChoice = "labels"
    if unjudged and not metrics:
        word = typer.prompt(
            f"Who judges the {unjudged:,} sessions without a verdict ({', '.join(JUDGES)})",
            default="labels",
        )
        judge = next((name for name in JUDGES if name == word.strip()), "labels")
    tools = ""
    if any(
        agent.contents.inferred_tools and agent.partition not in tools_files
        for agent in report.agents
    ):
        tools = typer.prompt(
            "JSON file with the schemas of the agent's tools", default="", show_default=False
        )
    if tools and not (find_file().parent / Path(tools).expanduser()).is_file():
        raise SettingsError(
            f"The tools file {tools} does not exist: give a JSON list of OpenAI function schemas.",
            path=tools,
        )
    return Answers(
        base=base,
        use_patterns=use_patterns,
        judge=judge,
        metrics=metrics,
        tools=tools,
        tools_files=tools_files,
    )


def parse_metrics(text: str, names: Sequence[str]) -> dict[str, str]:
    """Parse the answer about metrics.

    Example:
        >>> parse_metrics("correct=higher, toxic=lower", ["correct", "toxic"])
        {'correct': 'higher', 'toxic': 'lower'}

    Raises:
        SettingsError: A metric is not in the store, or its direction is unknown.
    """
    rules = {}
    for part in filter(None, map(str.strip, text.split(","))):
        name, _, rule = (word.strip() for word in part.partition("="))
        if name not in names or rule not in ("higher", "lower"):
            raise SettingsError(
                f"{part!r} is not a metric with a direction: write name=higher or name=lower, "
                f"with one of these names: {', '.join(names)}."
            )
        rules[name] = rule
    return rules
