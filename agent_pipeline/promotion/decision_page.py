"""The page of a decision: an artifact of the asset `champion` that a person opens in a browser.

This module collects the parts of the page from the compared artifacts. `reports.page` renders the
page, and the sentences are in `decision_wording`.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from agent_pipeline.evaluation.evaluate import SAMPLES
from agent_pipeline.evaluation.evaluation_report import read_evaluation_report
from agent_pipeline.evaluation.stored_entries import Transcript
from agent_pipeline.export.report import read_export_report
from agent_pipeline.keys import PartitionKey
from agent_pipeline.promotion.comparison import Comparison
from agent_pipeline.promotion.decision import SanityAnswer
from agent_pipeline.promotion.decision_wording import (
    describe_for_everybody,
    describe_hold,
    describe_key_figures,
    describe_outcome,
    describe_reasons,
    format_chance,
    make_figure_rows,
)
from agent_pipeline.promotion.ledger import DECISION_PAGES, EXPORT, LedgerEntry
from agent_pipeline.promotion.request_changes import compare_adapters
from agent_pipeline.promotion.sanity_groups import OTHER_AGENTS_TURNS, SANITY_PREFIX
from agent_pipeline.promotion.stored_scores import (
    read_samples,
    read_transcripts,
    read_varied_transcripts,
)
from agent_pipeline.redaction.surrogates import with_surrogates
from agent_pipeline.reports import episode_report
from agent_pipeline.reports.episode_report import TRANSCRIPTS, PlayerFigures, read_episode_report
from agent_pipeline.reports.page import (
    MADE_UP,
    MOST_EPISODES,
    MOST_TURNS,
    PAGE,
    Page,
    PageItem,
    Split,
    bounded,
    differing_turns,
    episode_items,
    render,
    split_tables,
    training_curves,
)
from agent_pipeline.reports.page_items import variant_items
from agent_pipeline.selection.tables import DATASET, read_dataset_rows
from agent_pipeline.sessions.session import hash_json
from agent_pipeline.storage.artifacts import Artifact, ArtifactDetails
from agent_pipeline.storage.lake import Lake
from agent_pipeline.training.chain import describe_used_template, find_trained_adapters

ASSET = DECISION_PAGES

Table = tuple[str, list[list[str]]]
"""A table: its title, and its rows. The first row is the head."""


def write_decision_page(
    lake: Lake,
    key: PartitionKey,
    candidate: Artifact,
    champion: Artifact | None,
    compared: Comparison,
    entry: LedgerEntry,
) -> Artifact:
    """Write the page of a decision, and return its artifact.

    The manifest names the sessions on the page, so that `forget` can find the page.

    Args:
        lake: The lake.
        key: The partition.
        candidate: The candidate, an export.
        champion: The champion, if there is one.
        compared: The artifacts of both models.
        entry: The decision's entry in the ledger.

    Raises:
        DataError: A file of a compared artifact does not exist anymore.
    """
    shown = [
        artifact
        for pair in (compared.select, compared.test, compared.episodes)
        for artifact in pair
        if artifact
    ]
    sessions = {
        session
        for artifact in shown
        for session in artifact.manifest["made_from"].get("sessions", ())
    }
    made_from: dict[str, Any] = {
        "adapter": candidate.manifest["made_from"]["adapter"],
        EXPORT: candidate.identity,
        "decision": entry.number,
        "shown": [artifact.identity for artifact in shown],
        "sessions": sorted(sessions),
    }
    hold = describe_hold(lake, key, candidate.identity)
    if hold:  # the page of the same decision without the hold is another page
        made_from["hold"] = hold
    identity = hash_json(made_from)
    building = lake.building(ASSET, key, identity)
    page = _make_page(lake, key, candidate, champion, compared, entry)
    (building / PAGE).write_text(render(page), encoding="utf-8")
    report = {"decision": describe_outcome(entry.decision), "number": entry.number}
    return lake.finish(
        ASSET,
        key,
        identity,
        building,
        made_from,
        report,
        ArtifactDetails(parents=[candidate.identity, *made_from["shown"]]),
    )


def _make_page(
    lake: Lake,
    key: PartitionKey,
    candidate: Artifact,
    champion: Artifact | None,
    compared: Comparison,
    entry: LedgerEntry,
) -> Page:
    """Return the content of the page. The arguments are those of `write_decision_page`."""
    decision, baseline = entry.decision, "champion" if champion else "base"
    splits = [
        split
        for name, pair in (("select", compared.select), ("test", compared.test))
        if (split := _make_split(name, *pair)) is not None
    ]
    tables: list[Table] = [
        ("Figures on which the decision is based", make_figure_rows(decision.figures, baseline))
    ]
    if entry.test:
        tables.append(
            (
                "Figures on the split test, which the decision does not use",
                make_figure_rows(entry.test, baseline),
            )
        )
    for split in splits:
        tables += split_tables(split)

    has_surrogates = any(
        artifact is not None and artifact.manifest["made_from"].get("surrogates_sha256")
        for artifact in (*compared.select, *compared.test)
    )
    stored_rows = read_dataset_rows(lake, key, ("select", "test")) if lake.has(DATASET, key) else ()
    shown_rows = with_surrogates(stored_rows) if has_surrogates else stored_rows
    rows_by_id = {row["row_id"]: row for row in shown_rows}
    turns, turn_notes = bounded(
        (turn for split in splits for turn in differing_turns(split, rows_by_id)),
        MOST_TURNS,
        "turns",
        ", ".join(split.path for split in splits),
    )
    episodes: list[PageItem] = []
    episode_notes: list[str] = []
    if compared.episodes[0]:
        path = str(compared.episodes[0].path / TRANSCRIPTS)
        episodes, episode_notes = bounded(
            episode_items(_episodes_by_player(compared), path), MOST_EPISODES, "episodes", path
        )
        tables.append(("Episodes", episode_report.figure_rows(_figures_by_player(compared))))
        tables += _make_variant_tables(compared)
        in_variants = variant_items(
            _group_by_player(compared.episodes[0])["model"],
            read_varied_transcripts(compared.episodes[0]),
            path,
        )
        harmful = [item for item in in_variants if item.harm]
        shown_items, notes = bounded(harmful, MOST_EPISODES, "episodes", path)
        episodes, episode_notes = shown_items + episodes, notes + episode_notes
    if compared.sanity_answers:
        tables.append(_make_sanity_table(compared.sanity_answers))

    adapters = find_trained_adapters(lake, key, candidate.manifest["made_from"]["adapter"])
    chance = "not known"
    if decision.p_value is not None:
        chance = (
            f"{format_chance(decision.p_value)}; {format_chance(decision.allowed_error)} is allowed"
        )
    file_name = read_export_report(candidate).ollama.gguf or "of an older version"
    facts = {
        "candidate": f"{candidate.identity}, {file_name}",
        "chat template": describe_used_template(adapters),
        "requests": _describe_requests(lake, key, adapters, champion),
        "baseline": f"champion {champion.identity}"
        if champion
        else "the base model: there is no champion yet",
        "sanity questions": _count_sanity_questions(compared.sanity_answers),
        "decided": f"{entry.when}, by {entry.who}, number {entry.number}",
        "outcome": describe_outcome(decision),
        "p-value of the gain": chance,
    }
    if has_surrogates:
        facts |= MADE_UP
    reasons = describe_reasons(decision)
    if hold := describe_hold(lake, key, candidate.identity):
        reasons.insert(0, hold)
    return Page(
        title=f"Decision {entry.number} on {key}",
        facts=facts,
        headline=describe_for_everybody(decision, baseline),
        summary=describe_key_figures(decision, baseline),
        reasons=reasons,
        tables=tables,
        items=turns + episodes,
        curves=training_curves(adapters),
        notes=turn_notes + episode_notes,
    )


def _describe_requests(
    lake: Lake, key: PartitionKey, adapters: Sequence[Artifact], champion: Artifact | None
) -> str:
    """Return whether the newest sessions ask what both models were trained for."""
    texts = [f"candidate: {compare_adapters(lake, key, 'candidate', adapters)}"]
    if champion:
        adapter = champion.manifest["made_from"]["adapter"]
        chain = find_trained_adapters(lake, key, adapter)
        texts.append(f"champion: {compare_adapters(lake, key, 'champion', chain)}")
    return "; ".join(texts)


def _make_sanity_table(answers: tuple[SanityAnswer, ...]) -> Table:
    """Return the table of the sanity questions with both models' answers."""
    rows = [["question", "of", "base", "candidate"]]
    for answer in answers:
        rows.append(
            [
                answer.question,
                answer.group.removeprefix(SANITY_PREFIX),
                _describe_answer(answer.base, answer.base_answer),
                _describe_answer(answer.candidate, answer.candidate_answer),
            ]
        )
    return "Sanity questions", rows


def _describe_answer(is_good: bool, text: str) -> str:
    quality = "good" if is_good else "not good"
    return f"{quality}: {text}" if text else quality


def _count_sanity_questions(answers: tuple[SanityAnswer, ...]) -> str:
    """Return the number of sanity questions per group."""
    counts = Counter(answer.group for answer in answers)
    parts = [f"{count} {group.removeprefix(SANITY_PREFIX)}" for group, count in counts.items()]
    if not counts[OTHER_AGENTS_TURNS]:
        parts.append(
            "no turns of other agents, because no other agent of the project has held-out rows, "
            "or because sanity_question_rows is 0"
        )
    return ", ".join(parts)


def _make_split(name: str, candidate: Artifact | None, champion: Artifact | None) -> Split | None:
    """Return the measurements on a split, or `None` if the candidate was not evaluated on it."""
    if candidate is None:
        return None
    return Split(
        name,
        read_evaluation_report(candidate),
        read_samples(candidate),
        str(candidate.path / SAMPLES),
        read_evaluation_report(champion) if champion else None,
        read_samples(champion),
    )


def _episodes_by_player(compared: Comparison) -> dict[str, list[Transcript]]:
    """Return the episodes by player: first the baseline, then the candidate, then all others."""
    candidate = _group_by_player(compared.episodes[0])
    champion = _group_by_player(compared.episodes[1])
    if champion["model"]:
        episodes = {
            "champion": champion["model"],
            "candidate": candidate["model"],
            "base": candidate["base"],
        }
    else:
        episodes = {"base": candidate["base"], "candidate": candidate["model"]}
    if candidate["recorded"]:
        episodes["recorded"] = candidate["recorded"]
    return episodes


def _group_by_player(artifact: Artifact | None) -> dict[str, list[Transcript]]:
    """Return the episodes of an artifact by player."""
    episodes: dict[str, list[Transcript]] = {"model": [], "base": [], "recorded": []}
    for transcript in read_transcripts(artifact):
        if transcript["player"] in episodes:
            episodes[transcript["player"]].append(transcript)
    return episodes


def _make_variant_tables(compared: Comparison) -> list[Table]:
    """Return a table of the variants that each of the two models played."""
    tables = []
    for name, artifact in zip(("candidate", "champion"), compared.episodes, strict=True):
        report = read_episode_report(artifact) if artifact else None
        if report and (report.variants or report.unmeasured_variants):
            title = f"Episodes of the {name} in variants of the tasks"
            tables.append((title, episode_report.variant_rows(report)))
    return tables


def _figures_by_player(compared: Comparison) -> dict[str, PlayerFigures]:
    """Return the figures of the episodes by player. The candidate comes first."""
    candidate, champion = (
        read_episode_report(artifact).players if artifact else {} for artifact in compared.episodes
    )
    players = {"candidate": candidate["model"]}
    if champion:
        players["champion"] = champion["model"]
    return players | {name: figures for name, figures in candidate.items() if name != "model"}
