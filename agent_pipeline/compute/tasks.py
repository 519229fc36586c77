"""The heavy tasks of a nightly run: training, evaluation, export, episodes and comparisons.

Each task reads its rows from the lake and runs in the worker process. What belongs here: opening
the inputs, naming what an artifact is made from, and calling one function of another package. How a
model is trained or scored belongs to that package. The tasks of coresets are in `compute.coresets`.
"""

import json
from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from agent_pipeline.compute.artifact_cache import MODELS, Recipe, build, build_further_step
from agent_pipeline.compute.coresets import embed, losses
from agent_pipeline.compute.params import (
    ArtifactReference,
    CompareParams,
    EpisodesParams,
    EvaluateParams,
    ExportParams,
    FurtherStepParams,
    OptionValues,
    SanityParams,
    TrainParams,
)
from agent_pipeline.compute.registry import TASKS, Result, StepResult, task
from agent_pipeline.datasets.rows import DatasetRow
from agent_pipeline.datasets.verdicts import count_row_verdicts, describe_unverified
from agent_pipeline.errors import DataError, SettingsError
from agent_pipeline.models.base_model import BaseModel
from agent_pipeline.progress import Progress, silent
from agent_pipeline.redaction.surrogates import frame_of, spoken, surrogates_made_from
from agent_pipeline.selection.tables import read_dataset_rows
from agent_pipeline.sessions.session import Message, hash_json
from agent_pipeline.storage.artifacts import Artifact
from agent_pipeline.storage.filesystem import sha256_file
from agent_pipeline.training.chain import find_trained_adapters
from agent_pipeline.training.config import FURTHER
from agent_pipeline.training.provenance import FurtherInput, SftInput, name_rows
from agent_pipeline.training.report import TrainingReport, read_training_report

if TYPE_CHECKING:
    from agent_pipeline.evaluation.episodes import Episode
    from agent_pipeline.evaluation.stored_entries import EvaluatedModel

__all__ = [
    "TASKS",
    "VERSIONS",
    "compare",
    "embed",
    "episodes",
    "evaluate",
    "export",
    "losses",
    "on_policy",
    "prefer",
    "sanity_questions",
    "train",
]


# Version 12: the folder records the requests of the rows.
@task(12, TrainParams, (*MODELS, "trl"))
def train(params: TrainParams, progress: Progress = silent) -> StepResult:
    """Train a LoRA adapter on the chosen rows of the split `train` (supervised fine-tuning).

    Rows of earlier nights are replayed, and answers of the base model itself are rehearsed. The
    rows are those that `sft_coreset` chose, or in a comparison of methods those of
    `params.coreset`.
    """
    from agent_pipeline.datasets.requests import REQUESTS_FILE, describe_requests
    from agent_pipeline.datasets.splits import SplitSizes
    from agent_pipeline.selection.leaks import refuse_leaks
    from agent_pipeline.selection.replay import read_night_rows
    from agent_pipeline.selection.tables import check_chosen_calls, keep_picks
    from agent_pipeline.training.config import TrainingConfig
    from agent_pipeline.training.sft import resolve_sft_options, train_adapter
    from agent_pipeline.training.size_defaults import describe_size_defaults

    lake, key = params.open_lake(), params.key
    if params.leaks == "refuse":
        refuse_leaks(lake, key)
    chosen = None
    if params.coreset:
        chosen = keep_picks(params.training_rows(), params.find_artifact(params.coreset).path)
    night = read_night_rows(lake, key, params.replay_ratio, SplitSizes(**params.split), chosen)
    stored_rows, replay = night.rows, night.replay
    rows = params.shown_to_models(stored_rows)
    replayed = params.shown_to_models(replay.rows)
    base = params.open_base(params.base_model, params.base_revision)
    config = TrainingConfig(**resolve_sft_options(params.config, base, rows))
    by_size = describe_size_defaults(params.config, config.model_dump(), base)
    if by_size:
        progress(0, 1, f"{by_size} Reading the base model")
    check_chosen_calls(lake, key, rows)
    sft_input = SftInput(rows, base, config, replayed, params.replay_ratio, params.rehearsal)
    verdicts = count_row_verdicts([*rows, *replayed])
    made_from = sft_input.made_from() | describe_unverified(verdicts)

    def write(folder: Path) -> dict[str, Any]:
        report = train_adapter(sft_input, folder, progress=progress)
        # Newer sessions have pseudonyms too, so the rows as stored compare with them.
        requests = describe_requests([*stored_rows, *replay.rows])
        (folder / REQUESTS_FILE).write_bytes(msgspec.json.encode(requests))
        return msgspec.structs.replace(report, verdicts=verdicts).to_json()

    result = build(train, params, Recipe("sft_adapter", made_from, write))
    rows_with_surrogates = 0
    for row, stored_row in zip(rows, stored_rows, strict=True):
        # A row without private values is the same object.
        rows_with_surrogates += row is not stored_row
    return {
        **result,
        "rows": len(rows),
        "rows_with_surrogates": rows_with_surrogates,
        "by_size": by_size,
        "replay": replay.report(),
        "replayed": replay.describe(),
    }


@task(11, FurtherStepParams, (*MODELS, "trl"))
def prefer(params: FurtherStepParams, progress: Progress = silent) -> Result:
    """Continue training an adapter on judged rows, by DPO or KTO.

    The rows are those of the split `train`. The SFT rows of the split `select` show whether the
    model gets worse at its job. If nothing can be trained, the artifact has no weights, and its
    report gives the reason (`skipped`).
    """
    from agent_pipeline.training.preference_steps import train_preferences

    lake, key = params.open_lake(), params.key
    previous = params.find_artifact(params.reference)
    base = params.base_of(previous)
    every_split = ("train", "select", "test")
    judged = params.shown_to_models(read_dataset_rows(lake, key, every_split, params.dataset))
    rows = [row for row in judged if row["split"] == "train"]
    heldout = [row for row in judged if row["split"] != "train"]
    select = params.shown_to_models(read_dataset_rows(lake, key, ("select",)))

    further_input = FurtherInput(
        params.method,
        rows,
        base,
        previous.path,
        FURTHER[params.method](**params.config),
        previous.identity,
        select,
    )

    def write(folder: Path) -> TrainingReport:
        return train_preferences(further_input, folder, heldout, progress)

    verdicts = count_row_verdicts(rows)
    return build_further_step(prefer, params, previous, further_input.made_from, write, verdicts)


# Version 7: a wrong last answer earns no reward in a world.
@task(7, FurtherStepParams, (*MODELS, "trl"))
def on_policy(params: FurtherStepParams, progress: Progress = silent) -> Result:
    """Continue training an adapter on its own answers, by GRPO, self-distillation or distillation.

    The prompts come from the split `train` of `sft_dataset`. The rows of `select` show whether the
    model gets worse at its job. `skipped` is as in `prefer`.
    """
    from agent_pipeline.evaluation.rollouts import practice
    from agent_pipeline.training.on_policy_steps import train_on_policy

    lake, key = params.open_lake(), params.key
    previous = params.find_artifact(params.reference)
    base = params.base_of(previous)
    config = FURTHER[params.method](**params.config)
    select = params.shown_to_models(read_dataset_rows(lake, key, ("select",)))
    train_rows = params.shown_to_models(read_dataset_rows(lake, key))
    practised = practice(train_rows, config, params.world)
    details = dict(practised.details)
    teacher: BaseModel | None = None
    if teacher_model := getattr(config, "teacher_model", ""):
        teacher = params.open_base(teacher_model, getattr(config, "teacher_revision", ""))
        details["taught_by"] = [teacher.name, teacher.revision]

    further_input = FurtherInput(
        params.method,
        practised.rows,
        base,
        previous.path,
        config,
        previous.identity,
        select,
        details,
    )

    def write(folder: Path) -> TrainingReport:
        return train_on_policy(further_input, folder, practised.play, teacher, progress)

    verdicts = count_row_verdicts(train_rows)
    return build_further_step(on_policy, params, previous, further_input.made_from, write, verdicts)


def fit_context(config: OptionValues, base: BaseModel, progress: Progress = silent) -> OptionValues:
    """Return options whose `max_length` the base model can read, and note a change.

    These are the options to run a model with. The options as they were set belong in the identity
    of an evaluation or of episodes: a candidate and a champion whose bases read different lengths
    were asked in the same way.
    """
    from agent_pipeline.tokenization.length_check import read_context_length
    from agent_pipeline.training.size_defaults import describe_context_limit, limit_length

    context = read_context_length(base.path)
    sentence = describe_context_limit(config.get("max_length", 0), context)
    if sentence:
        progress(0, 1, sentence)
    return limit_length(config, context)


REMOVED_EVALUATION_OPTIONS: dict[str, Any] = {"own_template": False, "sessions_in_prompt": 0}
"""Removed options of the evaluation, with the values that they still have in the identity of an
evaluation.

An evaluation of an earlier version, which has these values, is therefore reused.
"""


# Version 16: `device` in the identity no longer names the library of the matrix products.
@task(16, EvaluateParams, MODELS)
def evaluate(
    params: EvaluateParams,
    progress: Progress = silent,
) -> Result:
    """Score an adapter and its base model on the held-out turns.

    The base model's scores are reused if an earlier evaluation has them for the same turns.

    Args:
        params: The adapter, and the options of `evaluation`; `config["split"]` names the split.
        progress: Called as turns are scored.
    """
    from agent_pipeline.compute.base_measurements import KeptMeasurements
    from agent_pipeline.evaluation.evaluate import ROW_LOSSES, SAMPLES, EvaluationOptions
    from agent_pipeline.evaluation.evaluate import evaluate as evaluate_adapter
    from agent_pipeline.evaluation.heldout import heldout_rows
    from agent_pipeline.models.device import fast_device
    from agent_pipeline.reports.inspect_log import write_log
    from agent_pipeline.reports.page import PAGE, Split, evaluation_page

    lake, key = params.open_lake(), params.key
    config = {
        name: value
        for name, value in params.config.items()
        if name not in REMOVED_EVALUATION_OPTIONS
    }
    split = config.get("split", "test")
    stored_rows = heldout_rows(lake, key, split)
    adapter = params.find_artifact(params.adapter)
    rows = params.shown_to_models(stored_rows)
    base = params.base_of(adapter)
    used = fit_context(config, base, progress)
    number_format = fast_device().number_format
    described = name_rows(stored_rows) | surrogates_made_from(stored_rows, rows)
    parents = [adapter]
    kept = KeptMeasurements(evaluate, params, "evaluation", described, number_format, parents)
    made_from = {
        "adapter": adapter.identity,
        "config": config | REMOVED_EVALUATION_OPTIONS,
        # Scores of two number formats do not compare. The library that multiplies float32 matrices
        # is left out: a busy CPU may choose another one, and the evaluation would be made again.
        # Both libraries compute in float32, and their products differ by less than 1e-6.
        "device": number_format,
        **described,
    }

    def write(folder: Path) -> dict[str, Any]:
        options = EvaluationOptions(**used)
        result = evaluate_adapter(rows, base, adapter.path, options, progress, kept)
        report, samples = result.report, result.samples
        page_split = Split(split, report, samples, f"{SAMPLES} beside this page")
        for name, entries in ((SAMPLES, samples), (ROW_LOSSES, result.row_losses)):
            text = json.dumps(entries, indent=1, ensure_ascii=False)
            (folder / name).write_text(text, encoding="utf-8")
        adapters = find_trained_adapters(lake, key, adapter.identity)
        rows_by_id = {row["row_id"]: row for row in rows}
        has_surrogates = "surrogates_sha256" in made_from
        page = evaluation_page(params.partition, page_split, rows_by_id, adapters, has_surrogates)
        (folder / PAGE).write_text(page, encoding="utf-8")
        title = f"{params.partition} {split}"
        model_names: dict[EvaluatedModel, str] = {
            "base": base.name,
            "adapter": f"{base.name}+{adapter.identity[:16]}",
        }
        for player, model_name in model_names.items():
            write_log(folder, player, title, model_name, report, samples, rows_by_id)
        return {**msgspec.to_builtins(report), "max_length": options.max_length}

    return build(evaluate, params, Recipe("evaluation", made_from, write, parents))


@task(10, ExportParams, (*MODELS, "gguf", "xllamacpp"))
def export(params: ExportParams, progress: Progress = silent) -> Result:
    """Merge an adapter into its base model, write GGUF files, and check them with llama.cpp."""
    from agent_pipeline.evaluation.heldout import heldout_rows
    from agent_pipeline.export.converter import find_converter
    from agent_pipeline.export.gguf_export import ExportOptions, ExportRows
    from agent_pipeline.export.gguf_export import export as export_gguf
    from agent_pipeline.export.quantizer import K_QUANTS, find_quantizer
    from agent_pipeline.export.serving_folder import base_folder

    lake, key, config = params.open_lake(), params.key, params.config
    adapter = params.find_artifact(params.adapter)
    evaluation = params.find_artifact(params.evaluation)
    if evaluation.manifest["made_from"]["adapter"] != adapter.identity:
        raise DataError(
            f"The evaluation {evaluation.identity[:16]} of {params.partition} does not belong to "
            f"the adapter {adapter.identity[:16]}, which would be exported: materialize "
            "`evaluation` again."
        )
    base = params.base_of(adapter)
    llama_cpp = params.llama_cpp or None
    # Conversations are chosen by hash, so that the choice does not depend on their order.
    by_hash = sorted(heldout_rows(lake, key), key=lambda row: hash_json(row["row_id"]))
    chosen = by_hash[: config["max_conversations"]]
    compared = params.shown_to_models(chosen)
    made_from = {
        "adapter": adapter.identity,
        "adapter_made_from": adapter.manifest["made_from"],
        "config": config,
        "converter_sha256": sha256_file(find_converter(llama_cpp)),
        "compared": name_rows(chosen) | surrogates_made_from(chosen, compared),
    }
    imatrix_rows = list(islice(read_dataset_rows(lake, key), config["imatrix_rows"]))
    measured = params.shown_to_models(imatrix_rows)
    if measured:
        made_from["measured"] = name_rows(imatrix_rows) | surrogates_made_from(
            imatrix_rows, measured
        )
    if set(config["outtypes"]) & set(K_QUANTS):
        made_from["quantizer_sha256"] = sha256_file(Path(find_quantizer(llama_cpp)[-1]))

    def write(folder: Path) -> dict[str, Any]:
        options = ExportOptions(
            outtypes=config["outtypes"],
            max_new_tokens=config["max_new_tokens"],
            longest_row=read_training_report(adapter).longest_row_tokens,
            name=f"{params.partition} {adapter.identity[:16]}",
            llama_cpp_path=llama_cpp,
            least_kept=config["least_kept"],
            bases=base_folder(lake),
        )
        rows = ExportRows(compared, measured, read_dataset_rows(lake, key))
        return export_gguf(base, adapter.path, folder, rows, options, progress).to_json()

    return build(export, params, Recipe("gguf_export", made_from, write, [adapter]))


# Version 13: tasks are also played in variants.
@task(13, EpisodesParams, (*MODELS, "xllamacpp"))
def episodes(params: EpisodesParams, progress: Progress = silent) -> Result:
    """Let models play the held-out tasks in the agent's world.

    The exported model plays, or in a comparison of methods the adapter in memory. The base model
    plays the same tasks, unless `params.alone`, and the logged sessions are scored on them. The
    exported model also plays some of the tasks in variants.
    """
    from agent_pipeline.compute.base_measurements import (
        KeptMeasurements,
        keep_episodes,
        sessions_of_tasks,
    )
    from agent_pipeline.compute.playing import (
        OpenedPlayer,
        check_preconditions,
        count_episodes_of,
        gguf_player,
        memory_player,
        play_all,
        play_by,
        tasks_to_play,
    )
    from agent_pipeline.evaluation.heldout import heldout_rows, recorded_sessions, reply_limit
    from agent_pipeline.evaluation.replay_proof import choose_rows, count_not_played
    from agent_pipeline.evaluation.tape import add_tapes, list_tape_sessions
    from agent_pipeline.evaluation.variants import choose_variants, vary_tasks
    from agent_pipeline.evaluation.worlds import REPLAYED, hash_world_source
    from agent_pipeline.export.serving_folder import served_form
    from agent_pipeline.judging.preconditions import Preconditions
    from agent_pipeline.models.device import fast_device
    from agent_pipeline.reports.episode_report import make_episode_report, write_transcripts

    lake, key, config = params.open_lake(), params.key, params.config
    stored_rows = heldout_rows(lake, key, params.held_out)
    shown_rows = params.shown_to_models(stored_rows)
    rows = shown_rows
    adapter = params.find_artifact(params.adapter)
    # The two values come from several places, so no settings form can check them together.
    if config["trials"] > 1 and not config["temperature"]:
        raise SettingsError(
            f"All {config['trials']} trials of a task would be equal, because decoding is greedy: "
            "set `episodes.temperature`, or set `episodes.trials` to 1."
        )
    config = config | {"max_new_tokens": config["max_new_tokens"] or reply_limit(lake, key)}
    base = params.base_of(adapter)
    max_length = fit_context(config, base, progress)["max_length"]
    exported = params.find_artifact(params.gguf_export) if params.gguf_export else None
    sessions = recorded_sessions(lake, key, {row["task_key"] for row in rows})
    recorded = {task_key: messages for task_key, (_, messages) in sessions.items()}
    if params.surrogates:
        recorded = _with_surrogates(recorded, stored_rows)
    judged = lake.open("judged_sessions", key).read(["task_key"])["task_key"].to_pylist()
    played_before = _fresh_tasks_in_store(judged, config["fresh_seed"])
    not_played: dict[str, int] = {}
    if params.world == REPLAYED:
        # Nobody recorded a fresh task or a variant.
        config |= {"fresh_tasks": 0, "variants": []}
        rows = add_tapes(lake, key, rows, params.surrogates)
        not_played = count_not_played(stored_rows, rows, params.task_kinds)
        if params.task_kinds:
            rows = choose_rows(rows, params.task_kinds)
    tasks = tasks_to_play(
        params.world,
        rows,
        config["max_tasks"],
        config["fresh_tasks"],
        config["fresh_seed"],
        in_store=played_before,
    )
    preconditions = Preconditions.parse(params.preconditions)
    variants = [] if params.alone else choose_variants(config["variants"], params.world)
    made_from = {
        "adapter": adapter.identity,
        "gguf_export": exported.identity if exported else None,
        "variants": variants,
        "world": params.world,
        "world_sha256": hash_world_source(params.world),
        "config": config,
        "recorded_sha256": hash_json(recorded),
        **name_rows(stored_rows),
        **surrogates_made_from(stored_rows, shown_rows),
    }
    if params.alone:
        made_from["alone"] = True
    if params.task_kinds:
        made_from["task_kinds"] = params.task_kinds
    if preconditions:
        made_from["preconditions"] = params.preconditions
        made_from["preconditions_sha256"] = preconditions.hash_source()
    if played_before and config["fresh_tasks"]:
        made_from["not_fresh"] = played_before
    # `forget` finds an artifact by its sessions. The recorded agent may play another trial of a
    # task than the one in the rows.
    recorded_ids = {session_id for session_id, _ in sessions.values()}
    tape_sessions = list_tape_sessions(tasks)
    if params.world == REPLAYED:
        made_from["not_played"] = not_played
        made_from["tapes_sha256"] = hash_json([task["tape"] for task in tasks])
        recorded_ids.update(tape_sessions)
    made_from["sessions"] = sorted({*made_from["sessions"], *recorded_ids})
    limits = (config["max_new_tokens"], max_length)
    turns, trials = config["max_turns"], config["trials"]
    parents = [adapter]

    def play_base() -> "list[Episode]":
        """Return the base model's episodes. The base model decodes greedily."""
        base_sessions = {"sessions": sorted({*sessions_of_tasks(tasks), *tape_sessions})}
        number_format = fast_device().number_format
        kept = KeptMeasurements(episodes, params, "episodes", base_sessions, number_format, parents)
        source, names = made_from["world_sha256"], ("max_turns", "trials", "max_new_tokens")
        played = {name: config[name] for name in names} | {
            "max_length": max_length,
            "world": params.world,
            "world_sha256": source,
            "tasks": tasks,
        }

        def play_now() -> "list[Episode]":
            player = memory_player(base, adapter.path, None, *limits)
            report = count_episodes_of("base", progress)
            return play_by(params.world, tasks, player, turns, trials, report)

        return keep_episodes(kept, base, adapter, played, play_now)

    def write(folder: Path) -> dict[str, Any]:
        players: dict[str, OpenedPlayer | list[Episode]] = {}
        if exported:
            form = served_form(lake, exported)
            players["model"] = gguf_player(form, *limits, config["temperature"])
        else:
            players["model"] = memory_player(base, adapter.path, adapter.path, *limits)
        if not params.alone:
            players["base"] = play_base()
        varied = vary_tasks(tasks, variants, config["variant_tasks"])
        report, played = play_all(
            params.world,
            tasks + varied,
            players,
            recorded,
            turns,
            trials,
            progress,
        )
        if preconditions:
            played = check_preconditions(played, preconditions)
            report = make_episode_report(params.world, tasks + varied, trials, played)
        write_transcripts(folder, report, played)
        return {**msgspec.to_builtins(report), "max_length": max_length}

    return build(episodes, params, Recipe("episodes", made_from, write, parents))


def _with_surrogates(
    recorded: dict[str, list[Message]], stored_rows: Sequence[DatasetRow]
) -> dict[str, list[Message]]:
    """Return recorded conversations by task, with made-up values in place of pseudonyms."""
    tools_by_task = {row["task_key"]: row.get("tools") or [] for row in stored_rows}
    return {
        task_key: spoken(messages, task_key, frame_of(messages, tools_by_task.get(task_key, [])))
        for task_key, messages in recorded.items()
    }


def _fresh_tasks_in_store(task_keys: Iterable[str], fresh_seed: int) -> list[str]:
    """Return the tasks in the store that were generated as fresh tasks before.

    The seed of such a task is `fresh_seed` or a later one.
    """
    from agent_pipeline.evaluation.episodes import played_task

    names = set()
    for task_key in task_keys:
        played = played_task(task_key)
        if played and int(played[2]) >= fresh_seed:
            names.add(task_key)
    return sorted(names)


@task(9, SanityParams, MODELS, name="canaries")
def sanity_questions(params: SanityParams, progress: Progress = silent) -> Result:
    """Ask an adapter and its base model the sanity questions, with and without the agent's tools.

    Turns of other partitions are asked too.
    """
    from agent_pipeline.compute.base_measurements import KeptMeasurements
    from agent_pipeline.models.device import fast_device
    from agent_pipeline.promotion.sanity_questions import (
        ANSWERS_ASSET,
        ANSWERS_FILE,
        QUESTIONS,
        ask_sanity_questions,
        choose_other_turns,
    )

    lake, key = params.open_lake(), params.key
    adapter = params.find_artifact(params.adapter)
    shown_rows = params.shown_to_models(islice(read_dataset_rows(lake, key, ("select", "test")), 1))
    tools = (shown_rows[0].get("tools") if shown_rows else None) or []
    others = choose_other_turns(
        lake,
        key,
        params.sanity_question_rows,
        params.sanity_questions_beyond_project,
        params.shown_to_models,
    )
    base_model = params.base_of(adapter)
    max_length = fit_context(params.evaluation, base_model, progress)["max_length"]
    number_format = fast_device().number_format
    parents = [adapter]
    kept = KeptMeasurements(
        sanity_questions, params, "sanity questions", {}, number_format, parents
    )
    made_from = {
        "adapter": adapter.identity,
        "max_length": max_length,
        "questions_sha256": hash_json(list(QUESTIONS.items())),
        "tools_sha256": hash_json(tools),
        "others_sha256": hash_json([sample.key for sample in others.values()]),
    }

    def write(folder: Path) -> dict[str, Any]:
        base = params.base_of(adapter)
        answers = ask_sanity_questions(
            base, adapter.path, tools, progress, others, max_length, kept
        )
        (folder / ANSWERS_FILE).write_bytes(msgspec.json.encode(answers))
        return {
            "base": sum(answer.base for answer in answers),
            "candidate": sum(answer.candidate for answer in answers),
            "of": len(answers),
            "device": number_format,
        }

    return build(sanity_questions, params, Recipe(ANSWERS_ASSET, made_from, write, parents))


@task(1, CompareParams)
def compare(params: CompareParams, progress: Progress = silent) -> Result:
    """Measure a candidate and the champion on the same turns and the same episodes.

    Both answer the turns of the split `select`. The champion also answers those of `test`, and
    plays the candidate's episodes. The candidate answers the sanity questions. With `params.watch`,
    only `select` is measured. What was measured before is reused.

    Returns:
        The identity of each measurement; None if there are no rows, no champion or no episodes.
    """
    on_test = params.evaluation
    on_select = on_test | {"split": "select", "max_samples": params.select_turns}
    has_select = any(True for _ in read_dataset_rows(params.open_lake(), params.key, ("select",)))

    def evaluate_on(reference: ArtifactReference | None, config: OptionValues) -> str | None:
        if reference is None:
            return None
        evaluate_params = params.for_task(EvaluateParams, adapter=reference, config=config)
        result = evaluate.run(evaluate_params, progress)
        return str(result["identity"])

    references = [reference for reference in (params.candidate, params.champion) if reference]
    adapters = [params.find_artifact(reference) for reference in references]
    result = {
        "candidate": evaluate_on(params.candidate, on_select) if has_select else None,
        "champion": evaluate_on(params.champion, on_select) if has_select else None,
        "same_base": len({_base_name(adapter) for adapter in adapters}) == 1,
    }
    if params.watch or params.candidate is None:
        return result
    champion_episodes = None
    if params.play and params.champion:
        play = msgspec.structs.asdict(params.play)
        play_params = params.for_task(EpisodesParams, adapter=params.champion, **play)
        champion_episodes = episodes.run(play_params, progress)["identity"]
    sanity_params = params.for_task(
        SanityParams,
        adapter=params.candidate,
        evaluation=params.evaluation,
        sanity_question_rows=params.sanity_question_rows,
        sanity_questions_beyond_project=params.sanity_questions_beyond_project,
    )
    return result | {
        "champion_on_test": evaluate_on(params.champion, on_test),
        "champion_episodes": champion_episodes,
        "sanity_questions": sanity_questions.run(sanity_params, progress)["identity"],
    }


def _base_name(adapter: Artifact) -> str:
    """Return the name of the base model that an adapter was trained on."""
    return str(adapter.manifest["made_from"]["base_model"])


VERSIONS = {name: registered.version for name, registered in TASKS.items()}
"""Versions of the tasks of a nightly run, by name. Tasks that are imported later are not included.
"""
