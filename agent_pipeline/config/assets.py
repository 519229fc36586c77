"""The options of every asset: what run config and `pipeline.toml` may set.

`ASSETS` is the only list of them. Options that one room uses stand in that room, and the options of
the whole pipeline in `config.settings`.
"""

from typing import Any, Literal

from pydantic import Field

from agent_pipeline.config.methods import QUICK
from agent_pipeline.datasets.preferences import PairingStrategy
from agent_pipeline.datasets.publishing import ConversationFileOptions, FileOptions
from agent_pipeline.judging.options import JudgingOptions
from agent_pipeline.judging.verdict_leaks import LEAK_PATTERNS
from agent_pipeline.models.base_model import EMBEDDED
from agent_pipeline.options import Options
from agent_pipeline.promotion.policy import PromotionPolicy
from agent_pipeline.selection.coresets import CoresetOptions
from agent_pipeline.selection.embeddings import TFIDF
from agent_pipeline.sessions.damage import DAMAGE_KINDS, DEFAULT_REPAIR_POLICY
from agent_pipeline.training.chain import STEPS, name_adapter_asset
from agent_pipeline.training.config import BY_SIZE, FURTHER, AdapterTraining


class SessionsConfig(Options):
    """Options of `sessions`: repair of damaged records, and limits of the store's size."""

    repair: dict[str, str] = Field(
        default=dict(DEFAULT_REPAIR_POLICY),
        description="Repair of each kind of damage (drop_session, drop_turn, repair or keep): "
        + "; ".join(
            f"{kind}: {each.meaning} ({', '.join(each.allowed)})"
            for kind, each in DAMAGE_KINDS.items()
        ),
    )
    smallest_share: float = Field(
        default=0.5,
        ge=0,
        le=1,
        description=(
            "Smallest share of the last run's sessions, or of those with a verdict or a "
            "metric, that a store may have. A smaller store is refused, because most of it "
            "may be missing. 0 accepts any store."
        ),
    )
    largest_growth: float = Field(
        default=1.0,
        ge=0,
        description=(
            "Largest number of new sessions, as a multiple of the last run's sessions. A "
            "store with more is refused, because somebody may have planted them. Up to 30 new"
            " sessions, and three times the usual number, are always accepted. 0 accepts any "
            "store."
        ),
    )


class CurationConfig(Options):
    """Options of `curated_sessions`: which judged sessions are kept."""

    required_measures: list[str] = Field(
        default=["ended_with_answer", "all_calls_answered"],
        description=(
            "Measures that a session must pass in addition to its verdict. A good session "
            "that fails one is neither a good nor a bad example."
        ),
    )
    max_sessions: int = Field(
        default=0,
        ge=0,
        description=("Largest number of sessions to keep, the latest first; 0 means no limit."),
    )
    max_characters: int = Field(
        default=0,
        ge=0,
        description=(
            "Largest size of a session: characters of its messages, calls and results (about "
            "4 per token). Longer sessions are dropped; 0 means no limit."
        ),
    )
    verdict_leaks: list[str] = Field(
        default=list(LEAK_PATTERNS),
        description=(
            "Regular expressions, on lines in lower case, for a verdict that leaked into the "
            "text. Such a line is removed if it ends what the agent was told; otherwise the "
            "session is dropped."
        ),
    )
    served_model_sessions: Literal["drop", "keep"] = Field(
        default="drop",
        description=(
            "Whether to drop or keep sessions that a model of this lake produced, by the "
            "model's name in the session. A model that learns from its own sessions repeats "
            "its own mistakes."
        ),
    )


class ThoughtOptions(Options):
    """Options for the thoughts that sessions recorded."""

    reasoning: bool = Field(
        default=False,
        description=(
            "Whether recorded thoughts are trained, if the model's chat template renders "
            "thoughts. Use the same value for every dataset of an agent's chain."
        ),
    )


class SftConfig(ConversationFileOptions, ThoughtOptions):
    """Options of `sft_dataset`."""

    untrained_turns: list[str] = Field(
        default=["failed_measures"],
        description=(
            "Facts of a turn (the column turns of judged_sessions) for which the turn is "
            "context only and is not trained. tool_error: a tool returned an error. refused: "
            "the environment refused the call. breaks_schema: the arguments break the tool's "
            "schema. repeated_call: the call repeats an earlier one. failed_measures: the "
            "turn fails one of judged_sessions.turn_measures."
        ),
    )
    removed_options = dict.fromkeys(
        ("twins", "twin_texts"),
        "rows that were repeated without the tool they call made no measurable difference",
    )


class PreferenceConfig(FileOptions, ThoughtOptions):
    """Options of `preference_dataset`: how good and bad trials are paired."""

    strategy: PairingStrategy = Field(
        default="margin",
        description=(
            "How pairs are chosen. margin: the widest difference of scores first, each "
            "session once. best_worst: one pair per case. all_pairs: every pair. "
            "nearest_length: the most similar lengths first, each session once."
        ),
    )
    min_margin: float = Field(
        default=0.0,
        ge=0,
        le=1,
        description=(
            "Smallest difference between the scores of a pair. Equal scores never form a pair."
        ),
    )
    max_pairs_per_case: int = Field(
        default=8, ge=0, description=("Largest number of pairs per task; 0 means no limit.")
    )


class KtoConfig(FileOptions, ThoughtOptions):
    """Options of `kto_dataset`: which judged sessions are labelled."""

    all_sessions: bool = Field(
        default=False,
        description=("Whether sessions that are part of a preference pair are included too."),
    )


class ShareGptConfig(FileOptions):
    """Options of `sharegpt_dataset`."""

    alternating: bool = Field(
        default=True,
        description=(
            "Whether to write only conversations in which input and output alternate, because"
            " LLaMA-Factory discards other conversations."
        ),
    )


class MultiTaskConfig(ConversationFileOptions):
    """Options of `multi_task_dataset`. The setting `[mixing]` names the agents and their shares."""


class CoresetConfig(CoresetOptions):
    """Options of `sft_coreset`: which rows are selected, how many, and by which model."""

    base_model: str = Field(
        default=EMBEDDED,
        description=(
            "Model that computes losses, for strategies that need them, and hidden states."
        ),
    )
    base_revision: str = Field(
        default="",
        description=(
            "Commit, tag or branch of that model on the Hugging Face hub; empty means its "
            "main branch."
        ),
    )
    embeddings: str = Field(
        default=TFIDF,
        description=(
            "How conversations are embedded: tfidf (no model, no download), hidden_states (of"
            " the base model; slow on a CPU), model2vec:<folder or name>, or "
            "sentence-transformers:<folder or name>."
        ),
    )

    def of_model(self) -> dict[str, str]:
        """Return the options that the tasks `losses` and `embed` need."""
        return self.model_dump(include={"base_model", "base_revision", "embeddings"})


class ReplayConfig(Options):
    """Options of `replay_buffer`."""

    buffer_size: int = Field(
        default=2048,
        ge=0,
        description=(
            "Number of rows that the buffer keeps, a random sample of all rows ever trained "
            "on. A smaller buffer deletes rows for good; 0 deletes all of them."
        ),
    )


class AdapterConfig(AdapterTraining):
    """Options of the step `sft` of `adapter`: base model, training, replay and rehearsal."""

    base_model: str = Field(
        default=EMBEDDED, description=("Hugging Face id or local path of the model to train.")
    )
    base_revision: str = Field(
        default="",
        description=(
            "Commit, tag or branch of the base model on the Hugging Face hub; empty means its"
            " main branch."
        ),
    )
    learning_rate: float = Field(
        default=0.0,
        ge=0,
        description=BY_SIZE.format(
            "1.5e-3 below 0.3 billion weights, 5e-4 below 1 billion, 2e-4 below 20 billion, else "
            "1e-4"
        ),
    )
    num_train_epochs: float = Field(
        default=0.0,
        ge=0,
        description=(
            "Passes over the selected rows; 0 chooses by the size of the base model (1 below "
            "0.3 billion weights, otherwise 2)."
        ),
    )
    replay_ratio: float = Field(
        default=0.1,
        ge=0,
        lt=1,
        description=("Share of replayed rows from replay_buffer in every batch."),
    )
    rehearsal: float = Field(
        default=0.1,
        ge=0,
        lt=1,
        description=(
            "Share of the base model's own answers to plain questions, so that the model "
            "keeps its general abilities. There are 32 to 120 such rows, and never more than "
            "training rows; 0 means none."
        ),
    )


class EvaluationConfig(Options):
    """Options of `evaluation`."""

    max_samples: int = Field(
        default=60,
        ge=0,
        description=(
            "Largest number of held-out assistant turns to answer, chosen by hash. With 0, "
            "only the loss and the probability of a call are computed."
        ),
    )
    max_new_tokens: int = Field(default=96, ge=1, description=("Longest answer, in tokens."))
    max_length: int = Field(
        default=2048,
        ge=16,
        description=("Longest prompt, in tokens. A longer prompt loses its oldest exchanges."),
    )
    seed: int = Field(default=0, description=("Seed that chooses the turns."))
    removed_options = dict.fromkeys(
        ("own_template", "sessions_in_prompt"),
        "the base model is prompted exactly as the adapter, and no reported figure used another "
        "prompt",
    )


class GgufConfig(Options):
    """Options of `gguf_export`: which files are written, and how they are checked."""

    outtypes: list[str] = Field(
        default=["f16", "q8_0"],
        description=(
            "GGUF types to write: f32, f16, bf16 and q8_0; q6_k, q5_k_m and q4_k_m (these "
            "need a build of llama.cpp); lora is the adapter alone, for llama.cpp's server. "
            "One file is served and plays the episodes: lora if it is named and passes, "
            "otherwise the smallest model that passes."
        ),
    )
    least_kept: float = Field(
        default=0.9,
        ge=0,
        le=1,
        description=(
            "Smallest share of the merged model's decisions, and of its calls, that a file "
            "must reproduce to be served."
        ),
    )
    imatrix_rows: int = Field(
        default=0,
        ge=0,
        description=(
            "Number of training rows for the importance matrix of k-quants; 0 means no matrix."
        ),
    )
    max_conversations: int = Field(
        default=64,
        ge=1,
        description=(
            "Largest number of held-out conversations to compare, chosen by hash. An f16 or "
            "f32 file next to a quantized one answers 24 of them."
        ),
    )
    max_new_tokens: int = Field(
        default=48, ge=1, description=("Length of the compared answers, in tokens.")
    )


class ChampionConfig(PromotionPolicy):
    """Options of `champion`: when the candidate replaces the champion, and who approves it."""

    earlier_names = {
        **PromotionPolicy.earlier_names,
        "canary_rows": "sanity_question_rows",
        "canaries_beyond_project": "sanity_questions_beyond_project",
    }

    approve: Literal["auto", "person"] = Field(
        default="person",
        description=(
            "Who promotes a candidate that wins. person: it waits for `agent-pipeline "
            "promote`. auto: it becomes the champion at once."
        ),
    )
    select_turns: int = Field(
        default=400,
        ge=1,
        description=("Largest number of turns of the split select to answer, chosen by hash."),
    )
    probation_nights: int = Field(
        default=14,
        ge=0,
        description=(
            "Nights on which an automatically promoted champion is compared with the previous"
            " champion. If it is worse on newer tasks, the previous champion is restored. 0 "
            "means no probation."
        ),
    )
    sanity_question_rows: int = Field(
        default=16,
        ge=0,
        description="Held-out rows of other partitions that base model and candidate answer as "
        "sanity questions.",
    )
    sanity_questions_beyond_project: bool = Field(
        default=False,
        description="Whether these rows may be of other projects. Their content is never written "
        "into this partition's pages.",
    )

    def compare_params(self) -> dict[str, Any]:
        """Return the settings that the task `compare` needs."""
        return {
            name: getattr(self, name)
            for name in ("select_turns", "sanity_question_rows", "sanity_questions_beyond_project")
        }


class ServingConfig(Options):
    """Options of `serving`: what learns about a new champion."""

    server: str = Field(
        default="",
        description=(
            "URL of a running llama-server, which is asked to read its preset again. If "
            "empty, the server reads it at its next start."
        ),
    )
    ollama: bool = Field(
        default=False,
        description=("Whether to create the champion in Ollama, if the command `ollama` exists."),
    )
    name: str = Field(
        default="", description=("Name of the model in Ollama; empty means project-agent.")
    )
    hub: str = Field(
        default="",
        description=(
            "Repository on the Hugging Face hub to which the champion and its card are "
            "pushed; empty means none."
        ),
    )


class EpisodesConfig(Options):
    """Options of `episodes`: which tasks are played, and when an episode is cut off."""

    max_tasks: int = Field(
        default=64,
        ge=1,
        description=(
            "Largest number of held-out tasks to play, chosen by hash. With fewer than 59 "
            "harm-free episodes, a harm rate of 5 % cannot be ruled out."
        ),
    )
    fresh_tasks: int = Field(
        default=0,
        ge=0,
        description=("Number of additional tasks that no session has, made from a fresh seed."),
    )
    fresh_seed: int = Field(default=1001, description=("Seed of the fresh tasks."))
    trials: int = Field(
        default=1, ge=1, description=("Trials per task. More than one trial needs a temperature.")
    )
    temperature: float = Field(
        default=0.0, ge=0, description=("Sampling temperature of the exported model; 0 is greedy.")
    )
    max_turns: int = Field(
        default=12,
        ge=1,
        description=("Number of assistant messages after which an episode is cut off."),
    )
    max_new_tokens: int = Field(
        default=0,
        ge=0,
        description=(
            "Longest message, in tokens; 0 means the longest message of the agent's held-out "
            "rows, but at least 96."
        ),
    )
    max_length: int = Field(default=2048, ge=16, description=("Longest conversation, in tokens."))


class ComparisonConfig(Options):
    """Options of `method_comparison`."""

    methods: list[str] = Field(
        default=list(QUICK),
        min_length=1,
        description=(
            "Ids of the methods: those of MethodRegistry, and those of [methods]. The first, "
            "or A_baseline, is the reference."
        ),
    )
    seeds: int = Field(
        default=3,
        ge=1,
        description=(
            "Training runs per method. With one run, no difference can be distinguished from noise."
        ),
    )
    coreset_size: int = Field(
        default=0,
        ge=0,
        description=(
            "Number of rows of a coreset method without a target_size; 0 means half of the "
            "training rows, but at most 1,000."
        ),
    )
    split: Literal["select", "test"] = Field(
        default="select",
        description=(
            "Split that measures the methods. If test chooses a method, no clean measurement "
            "is left."
        ),
    )
    settings: list[str] = Field(
        default=[],
        description=(
            "Settings for every method, as asset.setting=value, for sft_coreset, the training"
            " steps, evaluation and episodes. A method's own settings win."
        ),
    )


ASSETS: dict[str, type[Options]] = {
    "sessions": SessionsConfig,
    "judged_sessions": JudgingOptions,
    "curated_sessions": CurationConfig,
    "sft_dataset": SftConfig,
    "preference_dataset": PreferenceConfig,
    "kto_dataset": KtoConfig,
    "sharegpt_dataset": ShareGptConfig,
    "multi_task_dataset": MultiTaskConfig,
    "sft_coreset": CoresetConfig,
    "replay_buffer": ReplayConfig,
    "sft_adapter": AdapterConfig,
    **{name_adapter_asset(step): options for step, options in FURTHER.items()},
    "evaluation": EvaluationConfig,
    "gguf_export": GgufConfig,
    "champion": ChampionConfig,
    "serving": ServingConfig,
    "episodes": EpisodesConfig,
    "method_comparison": ComparisonConfig,
}
"""The options of every asset that has any, and of every step of the asset `adapter`."""

ADAPTER = "adapter"
STEP_GROUPS = tuple(map(name_adapter_asset, STEPS))
"""The groups of options of the steps that the asset `adapter` runs, in their order."""


def owning_asset(group: str) -> str:
    """Return the asset that has a group of options.

    It is `adapter` for a training step, and otherwise the group's own name.
    """
    return ADAPTER if group in STEP_GROUPS else group
