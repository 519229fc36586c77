"""The upload of the champion to the Hugging Face hub: its files, and a model card.

The card describes the model and the decision on it.
"""

from collections.abc import Sequence
from pathlib import Path

from agent_pipeline.errors import ExportError
from agent_pipeline.export.request_files import REQUEST_FILES
from agent_pipeline.promotion.decision_wording import make_markdown
from agent_pipeline.promotion.episodes_in_force import LastEpisodes
from agent_pipeline.promotion.ledger import LedgerEntry
from agent_pipeline.reports.episode_report import make_table, read_episode_report, variant_rows
from agent_pipeline.sessions.transcript import format_markdown_table
from agent_pipeline.storage.artifacts import Artifact

PUSHED_FILES = (
    "README.md",
    "Modelfile",
    "*.gguf",
    "*.json",
    "*.safetensors",
    "*.jinja",
    *REQUEST_FILES,
)


def make_model_card(
    export: Artifact,
    entry: LedgerEntry | None,
    template: str = "",
    episodes: LastEpisodes | None = None,
    against: Sequence[str] = (),
) -> str:
    """Return the model card of an export.

    Args:
        export: The export.
        entry: The last decision on it.
        template: The chat template that it was trained with.
        episodes: The last episodes that it played.
        against: Objections to the export from its episodes and decisions.
    """
    from huggingface_hub import ModelCardData

    made_from = export.manifest["made_from"].get("adapter_made_from", {})
    head = ModelCardData(
        base_model=made_from.get("base_model"),
        library_name="peft",
        tags=["tool-calling", "gguf", "agent-pipeline"],
    )
    parts = [
        f"---\n{head.to_yaml()}\n---",
        f"# {export.key}",
        f"Trained and evaluated by agent-pipeline; export `{export.identity}`.",
    ]
    if against:
        parts.append(f"**Not fit to act unattended**: {'; '.join(against)}.")
    if episodes and episodes.played and episodes.why_not:
        parts.append(f"Its last episodes do not count now, because {episodes.why_not}.")
    if episodes and episodes.in_force:
        report = read_episode_report(episodes.in_force)
        parts.append(make_table(report))
        if report.variants:
            parts.append(format_markdown_table(variant_rows(report)))
    if template:
        parts.append(f"Chat template: {template}. The files contain the template.")
    if entry:
        baseline = "champion" if entry.champion else "base"
        parts.append(f"Decided on {entry.when[:10]}:")
        parts.append(make_markdown(entry.decision, entry.test, baseline))
    return "\n\n".join(parts) + "\n"


def push_to_hub(repository: str, folder: Path, export: Artifact, model_card: str) -> str:
    """Replace the content of a hub repository by the served files.

    A new repository is private. The token is huggingface_hub's own: `HF_TOKEN`, or the token of `hf
    auth login`.

    Args:
        repository: The name of the repository.
        folder: The folder that servers read.
        export: The export in the folder.
        model_card: The text of the model card.

    Returns:
        A sentence for a person.

    Raises:
        ExportError: The hub refused the files, or cannot be reached.
    """
    from huggingface_hub import HfApi

    (folder / "README.md").write_text(model_card, encoding="utf-8")
    try:
        hub = HfApi()
        hub.create_repo(repository, private=True, exist_ok=True)
        hub.upload_folder(
            repo_id=repository,
            folder_path=folder,
            allow_patterns=list(PUSHED_FILES),
            delete_patterns=["*.gguf"],
            commit_message=f"{export.key} {export.identity[:16]}",
        )
    except (OSError, ValueError) as error:  # huggingface_hub raises both kinds
        reason = " ".join(str(error).split())[:300]
        raise ExportError(
            f"The champion of {export.key} could not be pushed to {repository} ({reason}): check "
            "the repository's name and HF_TOKEN."
        ) from error
    return f"It was pushed to {repository} on the Hugging Face hub, with a model card."
