"""The champion on the Hugging Face hub: its GGUF, its adapter, and a card that says what it is and how it was decided on."""

from collections.abc import Sequence
from pathlib import Path

from agent_pipeline.errors import ExportError
from agent_pipeline.promotion.ledger import Record
from agent_pipeline.promotion.report import page
from agent_pipeline.reports.episode_report import table
from agent_pipeline.storage.artifacts import Artifact

PUSHED = ("README.md", "Modelfile", "*.gguf", "*.json", "*.safetensors", "*.jinja")


def card(
    export: Artifact,
    decided: Record | None,
    template: str = "",
    played: Artifact | None = None,
    against: Sequence[str] = (),
) -> str:
    """The model card of an export: what speaks `against` it, the tasks that it `played`, the `template` that it was trained with, and the
    figures that it was promoted on."""
    from huggingface_hub import ModelCardData

    made_from = export.manifest["made_from"].get("adapter_made_from", {})
    head = ModelCardData(
        base_model=made_from.get("base_model"),
        library_name="peft",
        tags=["tool-calling", "gguf", "agent-pipeline"],
    )
    text = [
        f"# {export.key}",
        f"Trained and evaluated by agent-pipeline; export `{export.identity}`.",
    ]
    text += [f"**Not fit to act unwatched**: {'; '.join(against)}."] if against else []
    text += [table(played.manifest["report"])] if played else []
    text += [f"Chat template: {template}. It is saved in the files."] if template else []
    if decided:
        rival = "champion" if decided.champion else "base"
        text += [f"Decided on {decided.when[:10]}:", page(decided.decision, decided.test, rival)]
    return "\n\n".join([f"---\n{head.to_yaml()}\n---", *text]) + "\n"


def push(repository: str, folder: Path, export: Artifact, text: str) -> str:
    """Puts what is served, with the text of its card, in place of what the hub's `repository` holds; a new one is private. Says so in a
    sentence.

    The token is huggingface_hub's own (`HF_TOKEN`, or `hf auth login`).

    Raises:
        ExportError: the hub refused it, or there is no way to it.
    """
    from huggingface_hub import HfApi

    (folder / "README.md").write_text(text, encoding="utf-8")
    try:
        hub = HfApi()
        hub.create_repo(repository, private=True, exist_ok=True)
        hub.upload_folder(
            repo_id=repository,
            folder_path=folder,
            allow_patterns=list(PUSHED),
            delete_patterns=["*.gguf"],
            commit_message=f"{export.key} {export.identity[:16]}",
        )
    except (OSError, ValueError) as error:  # what huggingface_hub raises are both, by kind
        reason = " ".join(str(error).split())[:300]
        raise ExportError(
            f"The champion of {export.key} could not be pushed to {repository} ({reason}): check its name and HF_TOKEN."
        ) from error
    return f"The hub's {repository} holds it, with its card."
