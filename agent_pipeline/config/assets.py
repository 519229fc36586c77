"""The options of every asset: what run config and `pipeline.toml` may set, with defaults, bounds and meaning.

`ASSETS` is the one list of them.
"""

from typing import Any, Literal

from pydantic import Field

from agent_pipeline.config.methods import QUICK
from agent_pipeline.datasets.preferences import PairingStrategy
from agent_pipeline.datasets.publishing import ConversationFileOptions, FileOptions
from agent_pipeline.evaluation.scores import Policy
from agent_pipeline.judging.leaks import LEAKS
from agent_pipeline.judging.panel import JudgingOptions
from agent_pipeline.models.base_model import EMBEDDED
from agent_pipeline.options import Options
from agent_pipeline.selection.coresets import CoresetOptions
from agent_pipeline.selection.embeddings import TFIDF
from agent_pipeline.sessions.damage import DAMAGE_KINDS, DEFAULT_REPAIR_POLICY
from agent_pipeline.training.chain import STEPS, adapter_of
from agent_pipeline.training.config import BY_SIZE, FURTHER, AdapterTraining


class SessionsConfig(Options):
    """How damaged records are repaired, and when a store is too small to be whole, or grew too fast."""

    repair: dict[str, str] = Field(
        default=dict(DEFAULT_REPAIR_POLICY),
        description="What is done about each kind of damage (drop_session, drop_turn, repair, keep): "
        + "; ".join(
            f"{kind}: {each.meaning} ({', '.join(each.allowed)})"
            for kind, each in DAMAGE_KINDS.items()
        ),
    )
    smallest_share: float = Field(
        default=0.5,
        ge=0,
        le=1,
        description="Refuse a store that has a smaller share of the last run's sessions, or of those with a recorded verdict or metric: "
        "most of it may be missing. 0 accepts any.",
    )
    largest_growth: float = Field(
        default=1.0,
        ge=0,
        description="Refuse a store with more new sessions than this multiple of the last run's: somebody may have planted them. Up to 30 "
        "new ones, and three times what usually comes in the time since the last run, are always accepted. 0 accepts any.",
    )


class CurationConfig(Options):
    """What is kept."""

    required_measures: list[str] = Field(
        default=["ended_with_answer", "all_calls_answered"],
        description="Measures that a session must pass beside its verdict; a good one that misses one is neither a good nor a bad answer.",
    )
    max_sessions: int = Field(
        default=0, ge=0, description="Keep at most so many sessions, the latest; 0 is no limit."
    )
    max_characters: int = Field(
        default=0,
        ge=0,
        description="Drop longer sessions: what is said, called and answered, about 4 characters a token; 0 is no limit.",
    )
    verdict_leaks: list[str] = Field(
        default=list(LEAKS),
        description="What a verdict in the text looks like (regular expressions on lines in lower case): taken out where it is the last "
        "line of what the agent was told, else the session is dropped.",
    )
    served_model_sessions: Literal["drop", "keep"] = Field(
        default="drop",
        description="Sessions that a model of this lake made, by the model's name in the session: drop them, so that no model learns from "
        "what it wrote itself; or keep them as any other session.",
    )


class ThoughtOptions(Options):
    """What is done with thoughts that sessions recorded."""

    reasoning: bool = Field(
        default=False,
        description="Train what was thought before a message, where the model's chat template shows thoughts; false leaves it out, counted "
        "as reasoning_left_out. Set it alike for all data sets that an agent's chain trains on.",
    )


class SftConfig(ConversationFileOptions, ThoughtOptions):
    """The supervised rows."""

    untrained_turns: list[str] = Field(
        default=["failed_measures"],
        description="Facts of the column turns of judged_sessions: a turn with one of them is context and is not trained. tool_error: "
        "a tool returned an error; refused: the environment did not carry the call out; breaks_schema: the arguments break the tool's "
        "schema; repeated_call: the call repeats an earlier one; failed_measures: the turn fails one of judged_sessions.turn_measures.",
    )
    removed_options = dict.fromkeys(
        ("twins", "twin_texts"),
        "rows that were repeated without the tool they call made no measurable difference",
    )


class PreferenceConfig(FileOptions, ThoughtOptions):
    """How good and bad trials are paired."""

    strategy: PairingStrategy = Field(
        default="margin",
        description="margin: the widest difference of scores first, each session once. best_worst: one pair a case. all_pairs: every pair. "
        "nearest_length: the most alike in length first, each session once.",
    )
    min_margin: float = Field(
        default=0.0,
        ge=0,
        le=1,
        description="Scores of a pair must differ by so much; equal ones never pair.",
    )
    max_pairs_per_case: int = Field(
        default=8, ge=0, description="At most so many pairs of a task; 0 is no limit."
    )


class KtoConfig(FileOptions, ThoughtOptions):
    """Which judged sessions are labelled on their own."""

    all_sessions: bool = Field(
        default=False,
        description="Also the sessions that stand in a preference pair, not only those without.",
    )


class ShareGptConfig(FileOptions):
    """Which conversations are written."""

    alternating: bool = Field(
        default=True,
        description="Only conversations in which what the agent reads and what it writes take turns: LLaMA-Factory discards others.",
    )


class MultiTaskConfig(ConversationFileOptions):
    """What is written beside the mixed table; which agents, and how much of each, is said by `[mixing]` in the settings."""


class CoresetConfig(CoresetOptions):
    """Which rows are chosen, how many, and by which model."""

    base_model: str = Field(
        default=EMBEDDED,
        description="Model whose losses are computed, for strategies that look at them; and of embeddings=hidden_states.",
    )
    base_revision: str = Field(
        default="",
        description="Commit, tag or branch of that model on the hub; empty: its main branch.",
    )
    embeddings: str = Field(
        default=TFIDF,
        description="What places conversations in space: tfidf (no model, no download), hidden_states (of the base model; slow on a CPU), "
        "model2vec:<folder or name>, sentence-transformers:<folder or name>.",
    )

    def of_model(self) -> dict[str, str]:
        """Parameters of the tasks `losses` and `embed`."""
        return self.model_dump(include={"base_model", "base_revision", "embeddings"})


class ReplayConfig(Options):
    """How much is remembered."""

    buffer_size: int = Field(
        default=2048,
        ge=0,
        description="Rows that are remembered, a uniform choice of all that were ever trained on; a smaller buffer lets rows go for good, "
        "0 all of them.",
    )


class AdapterConfig(AdapterTraining):
    """How the adapter is trained, on what base, and with how much of earlier nights."""

    base_model: str = Field(
        default=EMBEDDED, description="Hugging Face id or local path of the model to train."
    )
    base_revision: str = Field(
        default="",
        description="Commit, tag or branch of the base model on the hub; empty: its main branch.",
    )
    learning_rate: float = Field(
        default=0.0,
        ge=0,
        description=BY_SIZE.format(
            "1.5e-3 below 0.3 billion weights, 5e-4 below 1 billion, 2e-4 below 20 billion, else 1e-4"
        ),
    )
    num_train_epochs: float = Field(
        default=0.0,
        ge=0,
        description="Passes over the chosen rows; 0: by the size of the base model (1 below 0.3 billion weights, else 2).",
    )
    replay_ratio: float = Field(
        default=0.1,
        ge=0,
        lt=1,
        description="Share of rows of earlier nights, from replay_buffer, in every batch.",
    )
    rehearsal: float = Field(
        default=0.1,
        ge=0,
        lt=1,
        description="Share of the base model's own answers to plain questions, which keep what it could do beside the job: 32 at least "
        "(as many as rows where those are fewer), and 120 at most; 0: none.",
    )


class EvaluationConfig(Options):
    """On what, and how far, the models answer."""

    max_samples: int = Field(
        default=60,
        ge=0,
        description="Held-out assistant turns to answer, chosen by hash if there are more; 0: only loss and P(call).",
    )
    max_new_tokens: int = Field(default=96, ge=1, description="Longest answer, in tokens.")
    max_length: int = Field(
        default=2048,
        ge=16,
        description="Turns with a longer prompt, in tokens, lose their oldest exchanges.",
    )
    seed: int = Field(default=0, description="Seed of the choice of turns.")
    removed_options = dict.fromkeys(
        ("own_template", "sessions_in_prompt"),
        "the base model is prompted exactly as the adapter, and no reported figure used another prompt",
    )


class GgufConfig(Options):
    """What is exported, and how much of it is checked."""

    outtypes: list[str] = Field(
        default=["f16", "q8_0"],
        description="GGUF types to write: f32, f16, bf16, q8_0; q6_k, q5_k_m, q4_k_m (these need a build of llama.cpp); lora is the "
        "adapter alone, for llama.cpp's server. One is served, and plays the episodes: lora where it is named and passes, else the "
        "smallest whole model that passes.",
    )
    least_kept: float = Field(
        default=0.9,
        ge=0,
        le=1,
        description="A type that keeps fewer of the merged model's decisions, or of its calls, is not served.",
    )
    imatrix_rows: int = Field(
        default=0,
        ge=0,
        description="Training rows of which an importance matrix for the k-quants is made; 0: none.",
    )
    max_conversations: int = Field(
        default=64,
        ge=1,
        description="Held-out conversations whose tokens and answers are compared, chosen by hash if there are more; an f16 or f32 file "
        "beside a quantised one answers 24 of them.",
    )
    max_new_tokens: int = Field(
        default=48, ge=1, description="Length of the compared answers, in tokens."
    )


class ChampionConfig(Policy):
    """When the candidate replaces the champion, and who has the last word."""

    approve: Literal["auto", "person"] = Field(
        default="person",
        description="person: a candidate that wins waits for `agent-pipeline promote`; auto: it becomes the champion at once.",
    )
    select_turns: int = Field(
        default=400,
        ge=1,
        description="Turns of the split select to answer; chosen by hash if there are more.",
    )
    probation_nights: int = Field(
        default=14,
        ge=0,
        description="Nights for which a champion that promoted itself is looked at beside the one before it; rolled back where it is worse "
        "on newer tasks. 0: none.",
    )
    canary_rows: int = Field(
        default=16,
        ge=0,
        description="Held-out rows of other partitions that base and candidate answer as canaries.",
    )
    canaries_beyond_project: bool = Field(
        default=False,
        description="Whether those may be of other projects. Their words are never written into this partition's pages.",
    )

    def compared(self) -> dict[str, Any]:
        """What the comparison needs of these."""
        return {
            name: getattr(self, name)
            for name in ("select_turns", "canary_rows", "canaries_beyond_project")
        }


class ServingConfig(Options):
    """Who is told of the champion, beside the folder that servers read."""

    server: str = Field(
        default="",
        description="URL of a running llama-server, which is asked to read its preset again; empty: it keeps the old one until a restart.",
    )
    ollama: bool = Field(
        default=False,
        description="Create the champion in Ollama, where there is an `ollama` command.",
    )
    name: str = Field(default="", description="The model's name in Ollama; empty: project-agent.")
    hub: str = Field(
        default="",
        description="Repository of the Hugging Face hub to push the champion to, with its card; empty: none.",
    )


class EpisodesConfig(Options):
    """What is played, and how long."""

    max_tasks: int = Field(
        default=64,
        ge=1,
        description="Held-out tasks to play; chosen by hash if there are more. Fewer than 59 without harm do not exclude 5 % of it.",
    )
    fresh_tasks: int = Field(
        default=0,
        ge=0,
        description="Tasks of a fresh seed, which are in no session, to play beside them.",
    )
    fresh_seed: int = Field(default=1001, description="The seed of those.")
    trials: int = Field(
        default=1, ge=1, description="Trials of each task; more than one needs a temperature."
    )
    temperature: float = Field(
        default=0.0, ge=0, description="Sampling temperature of the GGUF; 0 is greedy."
    )
    max_turns: int = Field(
        default=12, ge=1, description="The assistant's messages after which an episode is given up."
    )
    max_new_tokens: int = Field(
        default=0,
        ge=0,
        description="Longest message, in tokens; 0: room for the longest in the agent's held-out rows, 96 at least.",
    )
    max_length: int = Field(default=2048, ge=16, description="Longest conversation, in tokens.")


class ComparisonConfig(Options):
    """Which methods are compared, how often each is trained, and on what all are measured."""

    methods: list[str] = Field(
        default=list(QUICK),
        min_length=1,
        description="Their ids: those of MethodRegistry, and those of [methods]. The first, or A_baseline, is the reference.",
    )
    seeds: int = Field(
        default=3,
        ge=1,
        description="Trainings of each method; with one, no difference can be told from noise.",
    )
    coreset_size: int = Field(
        default=0,
        ge=0,
        description="Rows of a coreset method that names no target_size; 0: half of the training rows, at most 1,000.",
    )
    split: Literal["select", "test"] = Field(
        default="select",
        description="Whose turns and tasks measure; who chooses a method by test has no clean measurement left.",
    )
    settings: list[str] = Field(
        default=[],
        description="asset.setting=value, for every method and below its own: of sft_coreset, the adapters, evaluation and episodes.",
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
    **{adapter_of(step): options for step, options in FURTHER.items()},
    "evaluation": EvaluationConfig,
    "gguf_export": GgufConfig,
    "champion": ChampionConfig,
    "serving": ServingConfig,
    "episodes": EpisodesConfig,
    "method_comparison": ComparisonConfig,
}
"""The options of every asset that has any, and of every step of the asset `adapter`."""

ADAPTER = "adapter"
STEP_GROUPS = tuple(map(adapter_of, STEPS))
"""The groups of options of the steps that the asset `adapter` runs, in their order."""


def owning_asset(group: str) -> str:
    """Return the asset that has a group of options: `adapter` for a training step, else the group."""
    return ADAPTER if group in STEP_GROUPS else group
