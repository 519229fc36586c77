"""The parameters of the heavy tasks, and functions that open the lake and the models for a task.

Parameters cross a process boundary as JSON: an asset sends them, and the worker decodes them. An
unknown name is an error there, and so is a missing name. A parameter that affects the result of a
task has no default, so a caller that forgets it gets an error instead of another model. What a task
computes from its parameters stands in `compute.tasks`, `compute.coresets` and
`method_comparison.task`.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec

from agent_pipeline.config.settings import Settings, load_settings
from agent_pipeline.datasets.multi_task import MIXED_TABLE
from agent_pipeline.datasets.rows import DatasetRow
from agent_pipeline.errors import DataError, name_asset_to_select
from agent_pipeline.json_types import JsonValue
from agent_pipeline.keys import PartitionKey, parse_key
from agent_pipeline.models.base_model import BaseModel, resolve_base_model
from agent_pipeline.redaction.surrogates import with_surrogates
from agent_pipeline.selection.tables import read_dataset_rows
from agent_pipeline.storage.lake import Artifact, Lake
from agent_pipeline.structs import convert_value
from agent_pipeline.training.config import Step

OptionValues = dict[str, Any]
"""Values for a group of options (`config.assets`), which checks them when it is created."""

OtherParams = TypeVar("OtherParams", bound="TaskParams")


class TaskParams(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The parameters that every task needs.

    Attributes:
        partition: The agent's partition, as `project/agent`.
        lake: The address of the lake.
        lake_options: Options of the lake's file system.
        trust_remote_code: Whether a model's own Python code may run.
        split: The share of each split, by the split's name.
        leaks: What happens if a held-out task leaks into the training rows.
        surrogates: Whether models see made-up values instead of pseudonyms.
        cache: A folder of the worker's machine for downloads and locks. The worker fills it in.
        llama_cpp: A checkout of llama.cpp on the worker's machine. The worker fills it in.
        tables: The sha256 of each table that the task reads, for the artifact's manifest.
        fresh: The id of the run that asks for new artifacts, or an empty string to reuse artifacts.
        at_once: How many heavy tasks may run at once on this machine; 0 means any number.
    """

    partition: str
    lake: str
    lake_options: dict[str, Any]
    trust_remote_code: bool
    split: dict[str, float]
    leaks: str
    surrogates: bool
    cache: str
    llama_cpp: str | None
    tables: dict[str, str] = {}
    fresh: str = ""
    at_once: int = 0

    @property
    def key(self) -> PartitionKey:
        """Return the key of the agent's partition."""
        return parse_key(self.partition)

    def open_lake(self) -> Lake:
        """Open the lake of the process that requested the task."""
        return Lake(self.lake, Path(self.cache), self.lake_options)

    def for_task(self, params_type: type[OtherParams], **values: object) -> OtherParams:
        """Return the parameters of another task: the common parameters and `values`."""
        common = {name: getattr(self, name) for name in TaskParams.__struct_fields__}
        return params_type(**(common | values))

    def open_base(self, base_model: str, base_revision: str) -> BaseModel:
        """Return a base model, and download it if necessary.

        Raises:
            ModelError: the model does not exist, or cannot be used.
        """
        cache = Path(self.cache)
        return resolve_base_model(base_model, cache, self.trust_remote_code, base_revision)

    def base_of(self, adapter: Artifact) -> BaseModel:
        """Return the base model of an adapter, at the revision on which the adapter was trained."""
        made_from = adapter.manifest["made_from"]
        return self.open_base(made_from["base_model"], made_from["base_revision"])

    def find_artifact(self, reference: "ArtifactReference") -> Artifact:
        """Return an artifact whose files match their checksums.

        Raises:
            DataError: the artifact is gone, or one of its files is damaged.
        """
        lake = self.open_lake()
        artifact = lake.find(reference.asset, self.key, reference.identity)
        if artifact is None:
            raise DataError(
                f"The {reference.asset} {reference.identity[:16]} of {self.partition} was "
                f"deleted: materialize `{name_asset_to_select(reference.asset)}` again."
            )
        return lake.verify(artifact)

    def shown_to_models(self, rows: Iterable[DatasetRow]) -> list[DatasetRow]:
        """Return rows in the form in which models see them.

        If the settings want it, made-up values replace the pseudonyms.
        """
        return list(with_surrogates(rows) if self.surrogates else rows)


class ArtifactReference(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A reference to an artifact of the partition: its asset and its identity."""

    asset: str
    identity: str


class RowsParams(TaskParams, kw_only=True, forbid_unknown_fields=True):
    """The parameters of a task that uses training rows.

    Attributes:
        mix: Whether the rows are those of `multi_task_dataset` instead of the agent's own.
    """

    mix: bool

    def training_rows(self, columns: Sequence[str] = ()) -> Iterator[DatasetRow]:
        """Return the rows of the split `train`, with all columns or only with `columns`."""
        if self.mix:
            return read_dataset_rows(self.open_lake(), None, dataset=MIXED_TABLE, columns=columns)
        return read_dataset_rows(self.open_lake(), self.key, columns=columns)


class EmbeddingParams(RowsParams, kw_only=True, forbid_unknown_fields=True):
    """The parameters of the tasks `losses` and `embed`.

    Attributes:
        base_model: The model that scores or embeds the rows.
        base_revision: Its revision on the Hugging Face hub; empty for the newest.
        embeddings: How rows are embedded: `tfidf`, `hidden_states`, or the name of an encoder.
    """

    base_model: str
    base_revision: str
    embeddings: str


class TrainParams(RowsParams, kw_only=True, forbid_unknown_fields=True):
    """The parameters of the task `train`, which runs supervised fine-tuning.

    Attributes:
        base_model: The model to start from.
        base_revision: Its revision on the Hugging Face hub; empty for the newest.
        replay_ratio: The share of replayed rows among all rows, 0 to 1.
        rehearsal: The share of the base model's own answers among all rows, 0 to 1.
        config: The options of the training run (`training.config.TrainingConfig`).
        coreset: The coreset of a compared method; None if the table `sft_coreset` chooses.
    """

    base_model: str
    base_revision: str
    replay_ratio: float
    rehearsal: float
    config: OptionValues
    coreset: ArtifactReference | None


class FurtherStepParams(RowsParams, kw_only=True, forbid_unknown_fields=True):
    """The parameters of `prefer` and `on_policy`, the tasks after supervised fine-tuning.

    Attributes:
        method: The step, such as `dpo`.
        reference: The adapter that the step continues from.
        config: The options of the step (`training.config.FURTHER`).
        dataset: The table of rows to train on.
        world: The agent's world, or an empty string. Only `grpo` plays in it.
    """

    method: Step
    reference: ArtifactReference
    config: OptionValues
    dataset: str
    world: str


class EvaluateParams(TaskParams, kw_only=True, forbid_unknown_fields=True):
    """The parameters of the task `evaluate`: an adapter, and the options of `evaluation`."""

    adapter: ArtifactReference
    config: OptionValues


class ExportParams(TaskParams, kw_only=True, forbid_unknown_fields=True):
    """The parameters of the task `export`: an adapter, its evaluation, and the export options."""

    adapter: ArtifactReference
    evaluation: ArtifactReference
    config: OptionValues


class EpisodesParams(TaskParams, kw_only=True, forbid_unknown_fields=True):
    """The parameters of the task `episodes`.

    Attributes:
        adapter: The adapter that was exported, or that plays itself.
        gguf_export: The export that plays; without it, the adapter plays in memory.
        world: The world to play in.
        config: The options of `episodes`.
        alone: Whether the base model plays no tasks for comparison.
        held_out: The split whose tasks are played.
        preconditions: The preconditions of the agent's tools, by tool.
        task_kinds: The kinds of tasks that are replayed; empty for all kinds, and in other worlds.
    """

    adapter: ArtifactReference
    gguf_export: ArtifactReference | None
    world: str
    config: OptionValues
    alone: bool
    held_out: Literal["select", "test"]
    preconditions: dict[str, list[str]] = {}
    task_kinds: list[str] = []


class SanityParams(TaskParams, kw_only=True, forbid_unknown_fields=True):
    """The parameters of the task `canaries`, which asks the sanity questions.

    Attributes:
        adapter: The adapter that answers, next to its base model.
        evaluation: The options of the candidate's evaluation.
        sanity_question_rows: The largest number of turns of other partitions.
        sanity_questions_beyond_project: Whether turns of other projects are asked too.
    """

    adapter: ArtifactReference
    evaluation: OptionValues
    sanity_question_rows: int
    sanity_questions_beyond_project: bool


class EpisodesToRepeat(msgspec.Struct, forbid_unknown_fields=True):
    """The candidate's episodes that the champion plays again, in addition to `EpisodesParams`."""

    gguf_export: ArtifactReference | None
    world: str
    config: OptionValues
    alone: bool
    held_out: Literal["select", "test"]
    preconditions: dict[str, list[str]] = {}
    task_kinds: list[str] = []


class CompareParams(TaskParams, kw_only=True, forbid_unknown_fields=True):
    """Parameters of the task `compare`, which measures the candidate and the champion equally.

    Attributes:
        candidate: The adapter that may replace the champion; None if there is none to measure.
        champion: The champion's adapter; without a champion, only the candidate is measured.
        evaluation: The options of the candidate's evaluation.
        select_turns: The largest number of turns of the split `select`.
        sanity_question_rows: As in `SanityParams`.
        sanity_questions_beyond_project: As in `SanityParams`.
        play: The candidate's episodes, for the champion to play; None if there are none.
        watch: Whether only the split `select` is measured, as for a champion on probation.
    """

    candidate: ArtifactReference | None
    champion: ArtifactReference | None
    evaluation: OptionValues
    select_turns: int
    sanity_question_rows: int
    sanity_questions_beyond_project: bool
    play: EpisodesToRepeat | None
    watch: bool


def common_values(settings: Settings, key: PartitionKey) -> dict[str, JsonValue]:
    """Return the parameters of `TaskParams` that the settings determine.

    No value is a path of this machine but the lake's address, because the worker may run elsewhere.
    """
    return {
        "partition": str(key),
        "lake": settings.lake_url,
        "lake_options": dict(settings.lake_options),
        "trust_remote_code": settings.trust_remote_code,
        "split": {**settings.split.shares},
        "leaks": settings.split.leaks,
        "surrogates": settings.redaction.surrogates,
    }


def on_this_machine(values: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    """Return the parameters with paths on this machine: the cache, and a checkout of llama.cpp.

    Raises:
        SettingsError: a setting of this machine is wrong.
    """
    settings = load_settings()
    return {**values, "cache": str(settings.cache_path), "llama_cpp": settings.llama_cpp_path}


def common_params(settings: Settings, key: PartitionKey) -> TaskParams:
    """Return the parameters that every task needs, for a task in the current process."""
    return convert_value(on_this_machine(common_values(settings, key)), TaskParams)
