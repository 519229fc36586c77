"""The meaning of each metadata key that the UI shows on assets and checks.

Dagster has no descriptions of metadata, so the page docs/reference/assets.md lists these.
"""

ASSET_METADATA = {
    "agents": "result of the night for each agent",
    "addressing_judge": (
        "sessions that contain a text for the judge, such as an order to judge them as good"
    ),
    "models": "figures of each model that answered, for all weeks together",
    "agreement": "share of the sessions on which two judges agree, per pair of judges",
    "answer_accuracy": "share of the answers that are right",
    "arguments_accuracy": (
        "share of the calls with the right arguments, among calls of the right tool"
    ),
    "call_recall": "share of the turns with a tool call, among turns that need a tool call",
    "candidate": "adapter that was evaluated",
    "champion": "identity of the served export, or none",
    "changed_requests": "changes in the agent's prompts and tools since the last training run",
    "chosen": "rows that the strategy chose",
    "comparison": "figures of the candidate, its base and the champion, with their differences",
    "confidence": "the model's confidence in its turns",
    "copied_from_the_last_table": "sessions that did not change and were not read again",
    "counts": "numbers of rows that were built or left out",
    "coverage": "distance of all rows from the chosen rows, compared with a random choice",
    "damage": "damaged parts of sessions, by kind and by action",
    "decision": "outcome of the decision: promote, hold, reject or cannot decide",
    "decision_auc": (
        "AUC with which the probability of a tool call separates turns that need a call from all "
        "other turns"
    ),
    "decision_number": "number of the decision in the ledger",
    "differences": "differences between methods, and whether they may be noise",
    "done": "share of the tasks that the model did",
    "done_in_variants": "share of the tasks that the model did in variants",
    "dropped": "sessions that are not used",
    "embedded_by": "model that computed the embeddings of the rows",
    "embeddings": "figures about the embeddings of the rows",
    "exact_call_accuracy": (
        "share of the calls with the same tool and arguments as the logged call"
    ),
    "figures": "figures of every model that was compared",
    "figures_on_test": "the same figures on the split `test`",
    "files": "files of the artifact, with their sizes",
    "folder": "folder that model servers read",
    "forgotten": "sessions that were deleted on request",
    "gain": "difference between the candidate and the model that it was compared with",
    "greedy_answers": (
        "greedy answers of the exported files that equal the answers of the merged model"
    ),
    "harm": "share of the episodes in which the model changed something wrongly",
    "harm_in_variants": (
        "share of the episodes in variants in which the model changed something wrongly"
    ),
    "held_by_a_person": "true if a person holds the candidate back",
    "held_out_tasks": (
        "number of held-out tasks, and the time at which there are enough for a decision"
    ),
    "heldout_loss": "loss on the held-out turns, in nats per token",
    "heldout_tasks": "number of held-out tasks",
    "huggingface": "folder of the Hugging Face dataset",
    "identity": "hash of all inputs and settings of the artifact",
    "jsonl": "folder of the JSON Lines files",
    "judge_checks": "agreement of measures and language models with people's judgments",
    "judgments": "verdicts in the store",
    "kept": "sessions that are used",
    "labels": "labels of people that were read, and problems with them",
    "largest_groups_of_new_rows": "groups of new rows that resemble each other",
    "left_out": "content or sessions that were left out, as counts by type or reason",
    "length_ratio": "length of the chosen answers, divided by the length of the rejected answers",
    "lengths": "histogram of the rows' sizes",
    "llm": "questions to the language model that judges, by outcome",
    "llm_requests": "requests to the language model that judges",
    "llm_tokens": "tokens of the questions to the language model that judges, and of its answers",
    "llm_usd": "cost of the language model that judges, in US dollars",
    "lenient_call_accuracy": "share of the calls with the same meaning as the logged call",
    "limits": "tool calls in the training rows that llama.cpp's server cannot produce",
    "last_runs": "chart of the most important figures over the last runs of the agent",
    "loss": "chart of the training loss by step",
    "loss_first": "training loss at the first step, in nats per token",
    "loss_last": "training loss at the last step, in nats per token",
    "losses": "histogram of the base model's losses on the rows",
    "made_of": "inputs and settings that the artifact was made from",
    "measures_failed": "sessions that failed each measure",
    "measures_not_taken": "sessions for which a measure has no result, with the reason",
    "median_length_of_chosen_by_rejected": (
        "median ratio of the lengths of the chosen and the rejected answer"
    ),
    "messages": "messages about serving, Ollama and pushes to the hub",
    "metrics_without_a_direction": (
        "metrics in the store that give no verdict, because no setting says which direction is "
        "better"
    ),
    "mixing": "settings of `[mixing]` that were used",
    "mlflow": "records that were written to MLflow",
    "new_rows": "rows that are new since the last training run",
    "no_episodes": "reason why no episode was played",
    "not_judged_yet": "sessions that the judge has not judged yet",
    "notes": "content that the reader left out or changed",
    "over_call": "share of the turns with a tool call, among turns that need no tool call",
    "p_value": "p-value of the gain",
    "page": "path of the page with all details",
    "parity": "comparison of the tokens and answers of each exported file with the merged model",
    "path": "folder of the artifact",
    "preview": "structure of the first conversations, without their texts",
    "probation": (
        "comparison of a new champion with the previous champion, during its first nights"
    ),
    "proportions": "wanted and real share of each agent",
    "pushed_to": "address of the dataset on the Hugging Face Hub",
    "readiness": (
        "report of `agent-pipeline doctor`: whether the agent can be trained, and what is missing"
    ),
    "reasons": "reasons why sessions or rows were dropped",
    "redacted": "private values that were replaced, by kind",
    "redacted_anew": "private values that were found in old rows, by kind",
    "replayed": "rows of earlier training runs that were used again in this run",
    "report": "the whole report as JSON",
    "reused": "true if nothing changed, and the existing artifact was used again",
    "right_decision": (
        "share of the turns in which the model is right to call a tool, or not to call a tool"
    ),
    "rows": "number of rows",
    "rows_before": "number of rows in the buffer before this run",
    "rows_with_a_name_that_openai_refuses": "rows with a tool name that OpenAI does not accept",
    "rows_with_surrogates": "rows in which made-up values replace pseudonyms",
    "rows_without_an_answer": "rows that do not end with an answer",
    "serves": "first digits of the identity of the served export",
    "sessions": "number of sessions",
    "sessions_made_by_a_served_model": (
        "sessions that contain answers of a model that this pipeline trained"
    ),
    "kept_sessions_made_by_a_served_model": (
        "kept sessions that contain answers of a model that this pipeline trained"
    ),
    "rows_made_by_a_served_model": (
        "rows that contain answers of a model that this pipeline trained"
    ),
    "sessions_with_a_verdict_cut_from_their_text": (
        "sessions from whose texts a verdict was removed"
    ),
    "settings": "settings that differ from their defaults, with the place where each was set",
    "share_of_pairs_whose_chosen_is_longer": "share of the pairs whose chosen answer is longer",
    "similarities": "histogram of the similarity to the nearest earlier row",
    "size_bytes": "size on disk, in bytes",
    "source": "name of the reader of the store",
    "splits": "rows per split",
    "step": "last training step that made an adapter",
    "steps": (
        "training steps with their rows, losses and minutes; for `tape`, the steps of recorded "
        "sessions"
    ),
    "strategy": "strategy that chose the rows",
    "tape_proof": (
        "agreement between the verdicts of replayed sessions and their recorded verdicts"
    ),
    "tasks": "number of tasks",
    "tasks_covered": "tasks with at least one chosen row",
    "tasks_in_another_split_than_the_settings_would_give": (
        "tasks that keep their split, although the present settings would choose another split"
    ),
    "template": "chat template, with the reason for its choice",
    "tokens_compared": "number of prompt tokens that were compared",
    "too_long": "held-out conversations that do not fit into the model's context",
    "too_few_rows": "rows that are missing for an agent's share of the mix",
    "tool_name_accuracy": "share of the calls that name the right tool",
    "tools": "each tool, with whether its calls read or write, and the reason",
    "tools_covered": "tools with at least one chosen row",
    "tools_from": "origin of the tool schemas",
    "traffic": (
        "share of the conversations that the champion answers, and the kinds of calls that are "
        "accepted"
    ),
    "trained_on": "rows of the last training run",
    "training_rows": "rows from which the strategy chose",
    "transcripts": "path of the page with all transcripts",
    "turn_classes": "number of assistant turns for each class, such as call or answer",
    "turns": "number of turns for each fact, such as a failed call",
    "unsure_turns": "share of the turns in which a token has a low probability",
    "uses": "number of sessions for each use: positive, negative or neither",
    "validation": "chart of the right decisions on the split `select` during training",
    "variants": "figures per variant of the tasks",
    "variation": "rows with renamed or additional tools, or with joined sessions",
    "verdicts": "number of sessions per verdict; for a trained model, the judges of its rows",
    "verdicts_by": "rows per judge",
    "verified_calls": (
        "share of the logged tool calls that the model would repeat exactly, computed without "
        "generating text"
    ),
    "warning": "warning about the strategy",
    "what_became_of_them": "rows that were added, kept or removed",
    "why": "reasons for the decision",
    "wins_and_waits_for_a_person": (
        "true if the candidate is better, and a person must approve its promotion"
    ),
    "without_an_sft_dataset": "agents that are not in the mix, because they have no sft_dataset",
    "world": "always none, because no episodes were played",
}
"""Description of each metadata key of a materialization, by key."""

CHECK_METADATA = {
    "changed_tools": "tools whose schema changed since the last version",
    "content_sha256": "sessions with the same content in several splits, or none",
    "difference": (
        "difference between the shares of exact calls of the model and of its base model"
    ),
    "dropped": "sessions that were dropped",
    "empty_splits": "splits without rows",
    "examples": "first pairs of nearly equal rows",
    "files": "files that were searched",
    "found": "private values that were found, by kind",
    "held_out": "sessions in the replay buffer whose task is held out",
    "held_out_sessions": "number of held-out sessions",
    "in_files": "files with private values",
    "in_sessions": "sessions with private values",
    "inferred": "sessions whose tool schemas were inferred from the calls",
    "last_version": "number of sessions in the previous version of the table",
    "leaked_sessions": "held-out sessions that are trials of a training task",
    "leaks": "first held-out sessions that are trials of a training task",
    "lost": "sessions that are in only one of the two tables",
    "near_duplicates": "held-out rows that nearly equal a training row",
    "new_sessions": "number of sessions that are new in this version",
    "p": "p-value of the difference",
    "plot": "chart of the shares in both versions",
    "read": "sessions that were read",
    "searched": "kinds of private data that were searched for",
    "session_id": "sessions that are in two splits, or none",
    "shares": "shares of both versions",
    "task_key": "tasks that are in two splits, or none",
    "texts": "texts that were searched",
    "without_a_reason": "sessions that were dropped without a reason",
}
"""Description of each metadata key of a check result that has another meaning, or is only there."""

REPORT_SUFFIX = "_report"
"""`sft_report`, `dpo_report` and so on: the whole report of a training step."""
PAGE_SUFFIX = "_page"
"""`sessions_page`, `decision_page` and so on: the address of a page, with `pages_url`."""


def describe_key(key: str) -> str:
    """Return the description of a metadata key, or an empty text if there is none.

    Keys that begin with `dagster/` are Dagster's own.
    """
    if key.startswith("dagster/"):
        return "described by Dagster"
    if key.endswith(REPORT_SUFFIX):
        return f"report of the training step `{key.removesuffix(REPORT_SUFFIX)}`"
    if key.endswith(PAGE_SUFFIX):
        return f"address of the page `{key.removesuffix(PAGE_SUFFIX)}`"
    return ASSET_METADATA.get(key, "")


def describe_check_key(key: str) -> str:
    """Return the description of a metadata key of a check result, or an empty text."""
    return CHECK_METADATA.get(key) or describe_key(key)
