"""The options of every asset, which a run config and `pipeline.toml` can set.

`ASSETS` is the only list of these options. Options that only one package uses are defined in that
package, and the options of the whole pipeline are in `config.settings`.
"""

from typing import Any, Literal

from pydantic import Field

from agent_pipeline.config.methods import QUICK
from agent_pipeline.datasets.preferences import PairingStrategy
from agent_pipeline.datasets.publishing import ConversationFileOptions, FileOptions
from agent_pipeline.evaluation.variants import EVERY_VARIANT
from agent_pipeline.judging.curation import ServedModelSessions
from agent_pipeline.judging.options import JudgingOptions
from agent_pipeline.judging.verdict_leaks import LEAK_PATTERNS
from agent_pipeline.models.base_model import EMBEDDED
from agent_pipeline.options import Options
from agent_pipeline.promotion.policy import PromotionPolicy
from agent_pipeline.promotion.production import ProductionOptions
from agent_pipeline.selection.coresets import CoresetOptions
from agent_pipeline.selection.embeddings import TFIDF
from agent_pipeline.sessions.damage import DEFAULT_REPAIR_POLICY
from agent_pipeline.training.chain import STEPS, name_adapter_asset
from agent_pipeline.training.config import FURTHER, RATE_BY_SIZE, AdapterTraining
from agent_pipeline.training.size_defaults import SMALL_BASE_OPTIONS


class SessionsConfig(Options):
    """Options of `sessions`: repair of damaged records, and limits of the store's size."""

    repair: dict[str, str] = Field(
        default=dict(DEFAULT_REPAIR_POLICY),
        description=(
            "Action for each kind of damage in a recorded session: drop_session, drop_turn, "
            "repair or keep. docs/explanation/traces.md lists the kinds of damage, their default "
            "actions and the allowed actions."
        ),
    )
    smallest_share: float = Field(
        default=0.5,
        ge=0,
        le=1,
        description=(
            "Minimum number of sessions in the store, divided by the number at the last run. If "
            "there are fewer sessions, the run fails, because sessions may be missing. The run "
            "also fails if the number of sessions with a verdict, or the number of sessions with "
            "a metric, falls below this share. 0 means no limit."
        ),
    )
    largest_growth: float = Field(
        default=1.0,
        ge=0,
        description=(
            "Maximum number of new sessions, divided by the number of sessions at the last run. "
            "If more sessions are new, the run fails, because somebody may have planted "
            "sessions. Up to 30 new sessions, and up to three times the usual number, are always "
            "accepted. 0 means no limit."
        ),
    )


class CurationConfig(Options):
    """Options of `curated_sessions`: which judged sessions are kept."""

    required_measures: list[str] = Field(
        default=["ended_with_answer", "all_calls_answered"],
        description=(
            "Measures (automatic tests of a session) that a session with a good verdict must "
            "also pass. If it fails one of them, it is not used for training, neither as a good "
            "nor as a bad example."
        ),
    )
    max_sessions: int = Field(
        default=0,
        ge=0,
        description=(
            "Maximum number of sessions to keep. The latest sessions are kept. 0 means no limit."
        ),
    )
    max_characters: int = Field(
        default=0,
        ge=0,
        description=(
            "Maximum size of a session, in characters (about 4 characters per token). Messages, "
            "tool calls and tool results count. Longer sessions are dropped. 0 means no limit."
        ),
    )
    verdict_leaks: list[str] = Field(
        default=list(LEAK_PATTERNS),
        description=(
            "Regular expressions that find a verdict in texts that the agent saw. Each line is "
            "compared in lower case. If a line with a verdict is at the end of a tool result or "
            "a user message, the line is removed. If a verdict is at any other place, the "
            "session is dropped."
        ),
    )
    served_model_sessions: ServedModelSessions = Field(
        default="judged",
        description=(
            "Use of good sessions that contain answers of a model that this pipeline trained. "
            "drop never trains on them. keep always trains on them. judged trains on them only "
            "if the good verdict comes from a person, or from the judgment, score or declared "
            "metric of the store. If a model learns from its own sessions, it repeats its own "
            "mistakes."
        ),
    )


class ThoughtOptions(Options):
    """Options for the thoughts that sessions recorded."""

    reasoning: bool = Field(
        default=False,
        description=(
            "Whether the model is trained on recorded thoughts (the model's reasoning before an "
            "answer). The chat template of the model must render thoughts. Use the same value "
            "for every dataset of an agent."
        ),
    )


class SftConfig(ConversationFileOptions, ThoughtOptions):
    """Options of `sft_dataset`: which turns the model is trained on."""

    untrained_turns: list[str] = Field(
        default=["failed_measures"],
        description=(
            "Facts that exclude a turn from training. An excluded turn stays in the row as "
            "context. The fact tool_error means that a tool returned an error. refused means "
            "that the environment refused the call. breaks_schema means that the arguments do "
            "not match the schema of the tool. repeated_call means that the call repeats an "
            "earlier call. failed_measures means that the turn fails a measure in "
            "judged_sessions.turn_measures."
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
            "Rule that chooses the pairs. margin prefers pairs with a large difference of "
            "scores, and uses each session once. nearest_length prefers pairs of similar length, "
            "and uses each session once. best_worst makes one pair per task. all_pairs makes "
            "every possible pair."
        ),
    )
    min_margin: float = Field(
        default=0.0,
        ge=0,
        le=1,
        description=(
            "Minimum difference between the two scores of a pair. Sessions with equal scores "
            "never form a pair."
        ),
    )
    max_pairs_per_case: int = Field(
        default=8, ge=0, description="Maximum number of pairs per task. 0 means no limit."
    )


class KtoConfig(FileOptions, ThoughtOptions):
    """Options of `kto_dataset`: which judged sessions are labelled."""

    all_sessions: bool = Field(
        default=False,
        description=(
            "Whether the dataset also contains sessions that are part of a preference pair."
        ),
    )


class ShareGptConfig(FileOptions):
    """Options of `sharegpt_dataset`: which conversations are written."""

    alternating: bool = Field(
        default=True,
        description=(
            "Whether conversations are left out if input and output do not alternate, or if a "
            "message has weight 0. LLaMA-Factory would discard the former, and train every message "
            "of the latter."
        ),
    )


class MultiTaskConfig(ConversationFileOptions):
    """Options of `multi_task_dataset`. The table `[mixing]` sets the share of each agent."""


class CoresetConfig(CoresetOptions):
    """Options of `sft_coreset`: which rows are selected, how many, and by which model."""

    base_model: str = Field(
        default=EMBEDDED,
        description=(
            "Model that computes losses and hidden states. Only some strategies and embeddings "
            "need a model."
        ),
    )
    base_revision: str = Field(
        default="",
        description=(
            "Commit, tag or branch of the model in base_model. If this setting is empty, the "
            "main branch is used."
        ),
    )
    embeddings: str = Field(
        default=TFIDF,
        description=(
            "Method that embeds conversations. tfidf needs no model. hidden_states uses the base "
            "model, and is slow on a CPU. In model2vec:NAME and sentence-transformers:NAME, NAME "
            "is a folder or a model on the Hugging Face hub."
        ),
    )

    def of_model(self) -> dict[str, str]:
        """Return the options that the tasks `losses` and `embed` need."""
        return self.model_dump(include={"base_model", "base_revision", "embeddings"})


class ReplayConfig(Options):
    """Options of `replay_buffer`: its size."""

    buffer_size: int = Field(
        default=2048,
        ge=0,
        description=(
            "Number of rows in the buffer, which is a random sample of all rows that the agent "
            "was ever trained on. If you lower the number, rows are deleted permanently. 0 "
            "deletes all rows."
        ),
    )


class AdapterConfig(AdapterTraining):
    """Options of the step `sft` of `adapter`: base model, training, replay and rehearsal."""

    base_model: str = Field(
        default=EMBEDDED, description="Hugging Face id or local path of the model to train."
    )
    base_revision: str = Field(
        default="",
        description=(
            "Commit, tag or branch of the base model on the Hugging Face hub. If this setting is "
            "empty, the main branch is used."
        ),
    )
    learning_rate: float = Field(
        default=0.0,
        ge=0,
        description=RATE_BY_SIZE,
    )
    num_train_epochs: float = Field(
        default=0.0,
        ge=0,
        description=(
            "Number of passes over the selected rows. 0 means that the size of the base model "
            "decides: 1 pass below 0.3 billion weights, otherwise 2 passes."
        ),
    )
    per_device_train_batch_size: int = Field(
        default=0,
        ge=0,
        description="Number of rows per forward pass and device. 0 means 1.",
    )
    gradient_accumulation_steps: int = Field(
        default=0,
        ge=0,
        description=(
            "Number of forward passes per optimizer step. 0 means that the pipeline chooses: 2 "
            "if the base model has less than 0.3 billion weights, otherwise 2 to 16, so that an "
            "epoch has at least 64 steps. If per_device_train_batch_size is set, 0 means 2."
        ),
    )
    max_length: int = Field(
        default=0,
        ge=0,
        description=(
            "Maximum length of a row, in tokens. A longer row loses its oldest messages, but "
            "never a part of an answer. 0 means that the pipeline chooses. It chooses 2048 if "
            "the base model has less than 0.3 billion weights. Otherwise it chooses the length "
            "of the longest row, but at least 2048, and at most 8192 or the context of the base "
            "model."
        ),
    )
    replay_ratio: float = Field(
        default=0.1,
        ge=0,
        lt=1,
        description="Share of the training rows that come from the replay buffer.",
    )
    rehearsal: float = Field(
        default=0.1,
        ge=0,
        lt=1,
        description=(
            "Share of training rows that contain an answer of the base model to a plain "
            "question. These rows let the trained model keep its general abilities. Training "
            "uses 32 to 320 such rows, but never more than other training rows. 0 means no such "
            "rows."
        ),
    )

    def hashed(self) -> dict[str, Any]:
        """Return all options as JSON under the names that enter hashes.

        For the embedded base model, options that follow from the rows have the values that were the
        defaults before, so that an agent with the default settings is not trained again.
        """
        hashed = super().hashed()
        if self.base_model != EMBEDDED:
            return hashed
        names = self.with_hashed_names(SMALL_BASE_OPTIONS)
        return hashed | {name: hashed[name] or default for name, default in names.items()}


class EvaluationConfig(Options):
    """Options of `evaluation`: how many turns are answered, and how long they may be."""

    max_samples: int = Field(
        default=60,
        ge=0,
        description=(
            "Maximum number of held-out assistant turns that the models answer. The turns are "
            "chosen by a hash. If this setting is 0, the models answer no turns, and only the "
            "loss and the probability of a tool call are computed."
        ),
    )
    max_new_tokens: int = Field(
        default=96, ge=1, description="Maximum length of an answer, in tokens."
    )
    max_length: int = Field(
        default=2048,
        ge=16,
        description=(
            "Maximum length of a prompt, in tokens. A longer prompt loses its oldest messages. "
            "If you do not set a value, the limit is at least the maximum length of the training "
            "rows."
        ),
    )
    seed: int = Field(default=0, description=("Seed for choosing the turns."))
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
            "GGUF types to write: f32, f16, bf16, q8_0, q6_k, q5_k_m, q4_k_m or lora. The types "
            "q6_k, q5_k_m and q4_k_m need a build of llama.cpp. The type lora writes the adapter "
            "without the base model. If lora is listed and passes the check, it is served. If "
            "lora is not served, the smallest file that passes the check is served."
        ),
    )
    least_kept: float = Field(
        default=0.9,
        ge=0,
        le=1,
        description=(
            "Minimum share of the merged model's decisions, and of its tool calls, that a file "
            "must reproduce to be served. A decision is whether a turn calls a tool."
        ),
    )
    imatrix_rows: int = Field(
        default=0,
        ge=0,
        description=(
            "Number of training rows from which the importance matrix of k-quants is computed. 0 "
            "means no matrix."
        ),
    )
    max_conversations: int = Field(
        default=64,
        ge=1,
        description=(
            "Maximum number of held-out conversations on which the files are compared with the "
            "merged model. The conversations are chosen by a hash. If there is a quantized file, "
            "an f16 or f32 file answers only 24 conversations."
        ),
    )
    max_new_tokens: int = Field(
        default=48, ge=1, description="Maximum length of the answers that are compared, in tokens."
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
            "Promotion of a candidate for which the decision is to promote. With person, a "
            "person must run `agent-pipeline promote`. With auto, the candidate becomes the "
            "champion at once. Some candidates always need a person, for example if their harm "
            "was not measured."
        ),
    )
    select_turns: int = Field(
        default=400,
        ge=1,
        description=(
            "Maximum number of turns of the split `select` that the models answer. The turns are "
            "chosen by a hash."
        ),
    )
    probation_nights: int = Field(
        default=14,
        ge=0,
        description=(
            "Number of nights during which an automatically promoted champion is still compared "
            "with the previous champion. If the new champion is worse on newer tasks, the "
            "previous champion is restored. 0 means no such comparison."
        ),
    )
    sanity_question_rows: int = Field(
        default=16,
        ge=0,
        description=(
            "Number of held-out rows of other agents that are used as sanity questions. Sanity "
            "questions show whether the candidate lost general abilities."
        ),
    )
    sanity_questions_beyond_project: bool = Field(
        default=False,
        description=(
            "Whether sanity questions may be rows of agents in other projects. The content of "
            "such rows is never written into the pages of this agent."
        ),
    )

    def compare_params(self) -> dict[str, Any]:
        """Return the settings that the task `compare` needs."""
        return {
            name: getattr(self, name)
            for name in ("select_turns", "sanity_question_rows", "sanity_questions_beyond_project")
        }


class ServingConfig(Options):
    """Options of `serving`: the servers and hubs that get a new champion."""

    server: str = Field(
        default="",
        description=(
            "URL of a running llama-server that loads the new champion after a promotion. If "
            "this setting is empty, a server loads the new champion when it is started again."
        ),
    )
    ollama: bool = Field(
        default=False,
        description=(
            "Whether the champion is registered with Ollama, if the command `ollama` exists."
        ),
    )
    name: str = Field(
        default="",
        description=(
            "Name of the model in Ollama. If this setting is empty, the name is project-agent."
        ),
    )
    hub: str = Field(
        default="",
        description=(
            "Repository on the Hugging Face hub to which the champion and its model card are "
            "pushed. If this setting is empty, nothing is pushed."
        ),
    )


class EpisodesConfig(Options):
    """Options of `episodes`: which tasks are played, and when an episode is cut off."""

    max_tasks: int = Field(
        default=64,
        ge=1,
        description=(
            "Maximum number of held-out tasks to play. The tasks are chosen by a hash. If there "
            "are fewer than 59 episodes, and none of them does harm, a harm rate of 5 % still "
            "cannot be ruled out."
        ),
    )
    fresh_tasks: int = Field(
        default=0,
        ge=0,
        description=(
            "Number of additional tasks that the world generates from a seed. No session "
            "contains these tasks."
        ),
    )
    fresh_seed: int = Field(default=1001, description=("Seed of the additional tasks."))
    trials: int = Field(
        default=1,
        ge=1,
        description=(
            "Number of trials per task. If it is more than 1, temperature must be above 0."
        ),
    )
    temperature: float = Field(
        default=0.0,
        ge=0,
        description="Sampling temperature of the exported model. 0 means greedy decoding.",
    )
    max_turns: int = Field(
        default=12,
        ge=1,
        description="Number of assistant messages after which an episode is cut off.",
    )
    max_new_tokens: int = Field(
        default=0,
        ge=0,
        description=(
            "Maximum length of a message, in tokens. 0 means about twice the length of the "
            "longest message in the agent's held-out rows, but at least 96."
        ),
    )
    max_length: int = Field(
        default=2048,
        ge=16,
        description=(
            "Maximum length of a conversation, in tokens. If you do not set a value, the limit "
            "is at least the maximum length of the training rows."
        ),
    )
    variants: list[str] = Field(
        default=[EVERY_VARIANT],
        description=(
            "Variants (changed forms of the tasks) in which the exported model plays some of the "
            "tasks again: tool_order, unused_tool, renamed_tool, and the world's own variants. "
            "all means all variants. An empty list means no variants."
        ),
    )
    variant_tasks: int = Field(
        default=30,
        ge=1,
        description=(
            "Maximum number of tasks per variant. If a model fails at one of ten tasks, 30 tasks "
            "show the failure with a probability of 96 %."
        ),
    )


class ComparisonConfig(Options):
    """Options of `method_comparison`: methods, training runs and the measured split."""

    methods: list[str] = Field(
        default=list(QUICK),
        min_length=1,
        description=(
            "Ids of the methods, from MethodRegistry or from the table [methods]. The other "
            "methods are compared with A_baseline if it is listed, otherwise with the first "
            "method."
        ),
    )
    seeds: int = Field(
        default=3,
        ge=1,
        description=(
            "Number of training runs per method. With one run per method, a difference cannot be "
            "distinguished from noise."
        ),
    )
    coreset_size: int = Field(
        default=0,
        ge=0,
        description=(
            "Number of rows that a coreset method selects if it does not set target_size. 0 "
            "means half of the training rows, but at most 1,000."
        ),
    )
    split: Literal["select", "test"] = Field(
        default="select",
        description=(
            "Split on which the methods are measured. If you choose a method by its result "
            "on test, test is no longer a fair measurement of this method."
        ),
    )
    settings: list[str] = Field(
        default=[],
        description=(
            "Settings that apply to every method, as asset.setting=value. You can set options of "
            "sft_coreset, the training steps, evaluation and episodes. If a method sets the same "
            "option, the method's value is used."
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
    "production": ProductionOptions,
    "serving": ServingConfig,
    "episodes": EpisodesConfig,
    "method_comparison": ComparisonConfig,
}
"""Options classes of all assets that have options, and of the steps of the asset `adapter`."""

ADAPTER = "adapter"
STEP_GROUPS = tuple(map(name_adapter_asset, STEPS))
"""Option groups of the steps that the asset `adapter` runs, in the order of the steps."""


def owning_asset(group: str) -> str:
    """Return the asset to which a group of options belongs.

    The options of a training step belong to `adapter`. All other groups have the name of their
    asset.
    """
    return ADAPTER if group in STEP_GROUPS else group
