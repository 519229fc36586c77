"""What is served is the champion; nothing else replaces it."""

import json
import os
import time
from pathlib import Path
from threading import Thread

import pytest

from agent_pipeline.compute.params import ArtifactReference, TaskParams
from agent_pipeline.errors import DataError, ExportError, PrivateDataError
from agent_pipeline.export import gguf_export, serving_folder
from agent_pipeline.export.gguf_export import ADAPTER, base_gguf, base_gguf_file
from agent_pipeline.export.ollama import OllamaResult
from agent_pipeline.export.serving_folder import base_folder, read_folder, served_form, write_folder
from agent_pipeline.gateway.traffic import Models, read_rules, write_traffic
from agent_pipeline.gateway.turn_checks import TrafficRules
from agent_pipeline.keys import PartitionKey
from agent_pipeline.models.base_model import BaseModel
from agent_pipeline.promotion import champions as champion_history
from agent_pipeline.promotion.champions import (
    champions,
    complete_move,
    promote,
    rollback,
    serve,
    serve_champion,
    serving_difference,
)
from agent_pipeline.promotion.episodes_in_force import DecidingWorld
from agent_pipeline.promotion.ledger import EXPORT
from agent_pipeline.redaction import RedactionOptions, Redactor
from agent_pipeline.reports.episode_report import FIGURE_LABELS
from agent_pipeline.sessions.session import hash_json
from agent_pipeline.storage.filesystem import write_checksum
from agent_pipeline.storage.lake import Artifact, Lake
from agent_pipeline_tests.lakes import artifact
from agent_pipeline_tests.task_params import task_values

KEY = PartitionKey("shop", "support")
UMASK = os.umask(0o022)
os.umask(UMASK)


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(str(tmp_path / "lake"), tmp_path / "cache")


def export(lake: Lake, name: str, passed: bool = True) -> Artifact:
    """An export of the adapter `name` that became the latest, if it passed its check."""
    made_from = {"adapter": hash_json(name)}
    files = {"Modelfile": "FROM ./model-f16.gguf\nPARAMETER num_ctx 2048\n", "model-f16.gguf": name}
    report = {"ollama": {"gguf": "model-f16.gguf", "num_ctx": 2048}}
    return artifact(
        lake, "gguf_export", KEY, made_from, files, report, hash_json(made_from), passed=passed
    )


def what_is_served(lake: Lake) -> str:
    """What the folder that servers read holds, after it was brought up to date."""
    serve_champion(lake, KEY)
    folder = Path(lake.root.path) / "serving"
    (model,) = (folder / "shop" / "support").glob("*.gguf")
    assert f"FROM ./{model.name}\n" in (folder / "shop" / "support" / "Modelfile").read_text(
        encoding="utf-8"
    )
    assert f"[shop/support]\nmodel = {model}\nctx-size = 2048\n" in (
        folder / "llama-server.ini"
    ).read_text(encoding="utf-8")
    assert served_form(lake, lake.champion("gguf_export", KEY)).model.samefile(model)
    return model.read_text(encoding="utf-8")


def serving_files(lake: Lake) -> list[str]:
    """Every file that a server could load."""
    root = Path(lake.root.path) / "serving"
    preset = (
        (root / "llama-server.ini").read_text(encoding="utf-8")
        if (root / "llama-server.ini").exists()
        else ""
    )
    return [
        path.name for path in root.rglob("*") if path.is_file() and path.name != "llama-server.ini"
    ] + (["preset"] if "[shop/support]" in preset else [])


def test_nothing_is_served_before_the_first_promotion(lake):
    """A first export that nobody measured was served at once."""
    export(lake, "first")
    said = serve_champion(lake, KEY)
    assert serving_files(lake) == [] and "agent-pipeline promote shop/support" in said[0]
    assert lake.latest("serving", KEY).manifest["made_from"]["gguf_export"] is None


def test_a_newer_export_replaces_the_champion_only_when_it_is_promoted(lake):
    export(lake, "first")
    promote(lake, KEY)
    assert what_is_served(lake) == "first"
    export(lake, "second")
    assert what_is_served(lake) == "first"
    promote(lake, KEY)
    assert what_is_served(lake) == "second"
    export(lake, "third")
    assert what_is_served(lake) == "second"
    promote(lake, KEY)
    rollback(lake, KEY)
    assert what_is_served(lake) == "second"


def test_traffic_after_moves(lake):
    """The gateway's share stays after a promotion, and is 0 after a rollback."""
    models = {str(KEY): Models("openai/large", "", "", "http://127.0.0.1:8080/v1", 30.0)}
    export(lake, "first")
    promote(lake, KEY)
    serve_champion(lake, KEY)
    first = lake.champion("gguf_export", KEY).identity[:16]
    write_traffic(lake, KEY, TrafficRules(share=0.1, champion=first), models)
    export(lake, "second")
    promote(lake, KEY)
    serve_champion(lake, KEY)
    rules = read_rules(lake)[str(KEY)]
    assert rules.share == 0.1 and rules.champion not in ("", first)
    rollback(lake, KEY)
    assert any("share" in message for message in serve_champion(lake, KEY))
    rules = read_rules(lake)[str(KEY)]
    assert rules.share == 0 and rules.champion == first


def test_served_copy_that_rotted(lake):
    """On a disk without hard links the served file is a copy. If it rotted, serving the champion again mends it."""
    export(lake, "first")
    promote(lake, KEY)
    assert what_is_served(lake) == "first"
    (served,) = (Path(lake.root.path) / "serving" / "shop" / "support").glob("*.gguf")
    content = served.read_bytes()
    served.unlink()
    served.write_bytes(bytes(len(content)))
    assert what_is_served(lake) == "first"
    assert served.read_bytes() == content


def test_damaged_base_is_converted_again(lake, monkeypatch, tmp_path):
    """The GGUF that the adapters of all agents share had no checksum, so that every agent was served from a damaged one."""
    conversions = []

    def convert(model: Path, file: Path, *_: object) -> Path:
        conversions.append(model)
        file.write_text("base", encoding="utf-8")
        return file

    monkeypatch.setattr(gguf_export, "convert", convert)
    base = BaseModel("b", tmp_path, "1")
    for _ in range(2):
        file = base_gguf(base, base_folder(lake))
    assert len(conversions) == 1
    for damage in (b"basf", b"", bytes(4)):
        file.write_bytes(damage)
        assert base_gguf(base, base_folder(lake)).read_text() == "base"
    other = base_gguf(BaseModel("c", tmp_path, "1"), base_folder(lake))
    assert len(conversions) == 5
    other.write_text("another", encoding="utf-8")
    write_checksum(other)
    other.replace(file)
    assert base_gguf(base, base_folder(lake)).read_text() == "base"


@pytest.mark.parametrize(
    "name",
    [
        "llama-server.ini",
        "shop/support/Modelfile",
        "shop/support/served.json",
        "shop/support/model",
    ],
)
@pytest.mark.parametrize("how", ["changed", "cut off", "zeros", "missing"])
def test_damaged_served_file(lake, name, how):
    """What is served was compared with the champion by the names of the files only."""
    export(lake, "first")
    promote(lake, KEY)
    assert what_is_served(lake) == "first"
    (path,) = (Path(lake.root.path) / "serving").glob(
        f"{name}*" if name.endswith("model") else name
    )
    content = path.read_bytes()
    path.unlink()
    if how != "missing":
        path.write_bytes(
            {"changed": content[:-1] + b"?", "cut off": content[:-1], "zeros": bytes(len(content))}[
                how
            ]
        )
    assert serving_difference(lake, KEY)
    messages = serve_champion(lake, KEY)
    assert path.read_bytes() == content and not serving_difference(lake, KEY)
    assert messages


def test_folder_of_an_older_version(lake):
    """An older version kept the section of the preset in a file of its own, and no checksums."""
    export(lake, "first")
    promote(lake, KEY)
    assert what_is_served(lake) == "first"
    root = Path(lake.root.path) / "serving"
    folder = root / "shop" / "support"
    section = json.loads((folder / "served.json").read_text())["section"]
    (folder / "preset.ini").write_text(section)
    (folder / "served.json").unlink()
    assert not serving_difference(lake, KEY)
    serving_folder.write_preset(lake)
    assert section in (root / "llama-server.ini").read_text()
    assert what_is_served(lake) == "first"
    assert (folder / "served.json").exists() and not (folder / "preset.ini").exists()


def test_damaged_section_is_not_in_the_preset(lake):
    """The section of another partition was copied into the preset as it was read."""
    other = PartitionKey("shop", "intern")
    for key in (KEY, other):
        made_from = {"adapter": hash_json(str(key))}
        files = {"Modelfile": "FROM ./model-f16.gguf\n", "model-f16.gguf": "weights"}
        report = {"ollama": {"gguf": "model-f16.gguf", "num_ctx": 2048}}
        artifact(lake, EXPORT, key, made_from, files, report)
        promote(lake, key)
        serve_champion(lake, key)
    record = Path(lake.root.path) / "serving" / "shop" / "intern" / "served.json"
    record.write_bytes(record.read_bytes().replace(b"2048", b"2049"))
    serve_champion(lake, KEY)
    preset = (Path(lake.root.path) / "serving" / "llama-server.ini").read_text()
    assert "[shop/support]" in preset and "[shop/intern]" not in preset
    assert serving_difference(lake, other)
    serve_champion(lake, other)
    assert not serving_difference(lake, other) and not serving_difference(lake, KEY)


def test_links_of_a_killed_promote(lake, monkeypatch):
    """A link that a killed writer left beside the partitions is removed an hour later, and one that is being made now is not."""
    export(lake, "first")
    promote(lake, KEY)
    assert what_is_served(lake) == "first"
    left = Path(lake.root.path) / "serving" / ".base-1f0c.gguf-0123abcd"
    left.write_text("base", encoding="utf-8")
    export(lake, "second")
    promote(lake, KEY)
    assert what_is_served(lake) == "second"
    assert left.exists()
    now = time.time()
    monkeypatch.setattr(serving_folder.time, "time", lambda: now + 3700)
    rollback(lake, KEY)
    assert what_is_served(lake) == "first"
    assert not left.exists()


def test_a_model_that_an_older_version_served_without_a_champion_is_removed(lake):
    first = export(lake, "first")
    write_folder(lake, KEY, first, None)
    assert read_folder(lake, KEY).identity == first.identity[:16]
    said = serve(lake, KEY).messages
    assert serving_files(lake) == [] and f"promote shop/support {first.identity[:16]}" in said[0]


def test_an_adapter_is_served_over_its_base_and_by_nothing_that_takes_another_form(lake):
    export(lake, "merged")
    promote(lake, KEY)
    assert what_is_served(lake) == "merged"
    trained = artifact(
        lake,
        "sft_adapter",
        KEY,
        {"base_model": "b", "base_revision": "1"},
        {"chat_template.jinja": "template"},
    )
    base_folder(lake).mkdir(parents=True)
    base = base_gguf_file(base_folder(lake), "b", "1")
    base.write_text("base", encoding="utf-8")
    write_checksum(base)
    files, report = (
        {ADAPTER: "adapter", "model-f16.gguf": "another form"},
        {"ollama": {"gguf": ADAPTER, "num_ctx": 2048}},
    )
    over = artifact(
        lake, "gguf_export", KEY, {"adapter": trained.identity}, files, report, trained.identity
    )
    promote(lake, KEY)
    assert "not registered with Ollama" in serve_champion(lake, KEY, ollama=True)[-1]
    root = Path(lake.root.path) / "serving"
    folder = root / "shop" / "support"
    (adapter,) = folder.glob("*.gguf")
    section = f"model = {root / base.name}\nlora = {adapter}\nchat-template-file = {folder / 'chat_template.jinja'}\nctx-size = 2048\n"
    assert f"[shop/support]\n{section}" in (root / "llama-server.ini").read_text(encoding="utf-8")
    assert not (folder / "Modelfile").exists()
    form = served_form(lake, over)
    assert (root / base.name).samefile(form.model) and adapter.samefile(form.lora)
    assert form.chat_template.read_bytes() == (folder / "chat_template.jinja").read_bytes()


def test_only_a_champion_is_created_in_ollama_and_only_where_it_is_asked_for(
    lake, tmp_path, monkeypatch
):
    export(lake, "first")
    (tmp_path / "ollama").write_text(
        f'#!/bin/sh\necho "$@" >> {tmp_path}/asked\n', encoding="utf-8"
    )
    (tmp_path / "ollama").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    assert "Only a champion" in serve_champion(lake, KEY, ollama=True)[-1]
    promote(lake, KEY)
    serve_champion(lake, KEY)
    assert not (tmp_path / "asked").exists()
    assert "shop-support" in serve_champion(lake, KEY, ollama=True)[-1]
    assert (
        (tmp_path / "asked")
        .read_text()
        .startswith(f"create shop-support -f {lake.root.path}/serving/shop/support/Modelfile")
    )


def test_nothing_private_is_served(lake):
    """A model's metadata was served without a search; what was served before stays served."""
    redactor = Redactor(RedactionOptions())
    export(lake, "first")
    promote(lake, KEY)
    serve_champion(lake, KEY, redactor=redactor)
    before = serving_files(lake)
    export(lake, "trained by ann.lee@shop.io")
    champion = lake.pointers(EXPORT, KEY).champion
    with pytest.raises(PrivateDataError):
        promote(lake, KEY, redactor=redactor)
    assert lake.pointers(EXPORT, KEY).champion == champion
    promote(lake, KEY)
    with pytest.raises(PrivateDataError) as error:
        serve_champion(lake, KEY, redactor=redactor)
    assert error.value.kinds_by_file == {"model-f16.gguf": {"EMAIL": 1}}
    assert serving_files(lake) == before and "ann.lee" not in str(error.value)
    allowing = Redactor(RedactionOptions(allow=("ann.lee@shop.io",)))
    assert serve_champion(lake, KEY, redactor=allowing) and serving_files(lake) != before


def test_a_champion_is_pushed_to_the_hub_with_its_card_and_a_refusal_is_one_sentence(
    lake, monkeypatch
):
    asked = []

    class Hub:
        def create_repo(self, repository, **options):
            if repository == "nobody/at-all":
                raise OSError("401 Client Error\nUnauthorized")
            asked.append((repository, options))

        def upload_folder(self, **options):
            asked.append(options)

    monkeypatch.setattr("huggingface_hub.HfApi", Hub)
    champion, adapter = export(lake, "first"), lake.building("sft_adapter", KEY, hash_json("first"))
    made_from, report = (
        {"base_model": "b", "base_revision": ""},
        {"template": {"why": "ours in ChatML"}},
    )
    lake.finish("sft_adapter", KEY, hash_json("first"), adapter, made_from, report)
    assert "Only a champion" in serve_champion(lake, KEY, hub="me/support")[-1] and not asked
    promote(lake, KEY)
    model = dict.fromkeys(FIGURE_LABELS) | {
        "done": {"n": 3, "of": 4},
        "kinds": {},
        "pass_hat": {},
        "turns": 2.0,
        "tokens": 9,
    }
    artifact(
        lake,
        "episodes",
        KEY,
        {EXPORT: champion.identity, "world": "w:W"},
        report={"players": {"model": model}, "against": ["it harms"]},
    )
    world = DecidingWorld("w:W")
    assert "me/support" in serve_champion(lake, KEY, None, world, hub="me/support")[-1]
    assert asked[0] == ("me/support", {"private": True, "exist_ok": True})
    assert (
        asked[1]["delete_patterns"] == ["*.gguf"]
        and champion.identity[:16] in asked[1]["commit_message"]
    )
    card = (asked[1]["folder_path"] / "README.md").read_text(encoding="utf-8")
    assert (
        "**Not fit to act unattended**: it harms." in card and "| tasks done | 3 of 4 |" in card
    ), "a person promoted it all the same"
    assert (
        card.startswith("---\nlibrary_name: peft\n")
        and f"`{champion.identity}`" in card
        and "Chat template: ours in ChatML." in card
    )
    with pytest.raises(
        ExportError, match=r"to nobody/at-all \(401 Client Error Unauthorized\): check"
    ):
        serve_champion(lake, KEY, hub="nobody/at-all")


@pytest.mark.parametrize("server", ["", "http://127.0.0.1:9"])
def test_whoever_serves_is_warned_that_a_running_server_keeps_its_old_preset(lake, server):
    export(lake, "first")
    promote(lake, KEY)
    said = serve_champion(lake, KEY, server=server)[-1]
    assert "keeps the old preset" in said and server in said


def test_an_export_is_promoted_by_its_identity_or_its_adapters(lake):
    first, second = export(lake, "first"), export(lake, "second")
    assert promote(lake, KEY, first.identity[:8]).champion == first.identity
    assert (
        promote(lake, KEY, second.manifest["made_from"]["adapter"][:12], why="asked").champion
        == second.identity
    )


@pytest.mark.parametrize("identity", ["ffff0000", ""])
def test_what_is_not_there_cannot_be_promoted(lake, identity):
    with pytest.raises(DataError):
        promote(lake, KEY, identity)


def test_what_failed_its_check_cannot_be_promoted_nor_what_two_have_in_common(lake):
    failed = export(lake, "failed", passed=False)
    export(lake, "first"), export(lake, "second")
    for identity in (failed.identity, failed.manifest["made_from"]["adapter"]):
        with pytest.raises(DataError):
            promote(lake, KEY, identity)


def test_a_rollback_returns_to_the_champion_before_or_to_the_one_of_an_entry(lake):
    names = [export(lake, name).identity for name in ("a", "b", "c")]
    entries = [promote(lake, KEY, identity) for identity in names]
    assert rollback(lake, KEY).champion == names[1]
    complete_move(lake, KEY)
    assert rollback(lake, KEY, to=entries[0].generation, why="worse").champion == names[0]
    last = lake.history("gguf_export", KEY)[-1]
    assert (last.why, last.against) == ("worse", names[1])
    assert [(key, entry.champion) for key, entry in champions(lake)] == [(KEY, names[0])]


def test_who_rolls_back_without_knowing_of_a_rollback_does_not_give_back_what_it_took(lake):
    names = [export(lake, name).identity for name in ("a", "b", "c")]
    for identity in names:
        promote(lake, KEY, identity)
    assert rollback(lake, KEY).champion == names[1]
    assert rollback(lake, KEY).champion == names[1], "the first one was not carried out"
    complete_move(lake, KEY)
    assert rollback(lake, KEY).champion == names[0]
    complete_move(lake, KEY)
    with pytest.raises(DataError, match="--to"):
        rollback(lake, KEY)
    assert (
        rollback(lake, KEY, to=lake.history("gguf_export", KEY)[-2].generation).champion == names[1]
    )


@pytest.mark.parametrize("step", ["write_folder", "create"])
def test_what_is_promoted_while_a_run_serves_is_served_in_the_end(lake, monkeypatch, step):
    export(lake, "first")
    promote(lake, KEY)
    export(lake, "second")
    at_once, created = [], []

    def another_serves(now):
        if now == step and not at_once:
            promote(lake, KEY)
            at_once.append(Thread(target=serve_champion, args=(lake, KEY), kwargs={"ollama": True}))
            at_once[0].start()
            at_once[0].join(0.3)

    def slow_write(*given):
        another_serves("write_folder")
        return write_folder(*given)

    def slow_create(name, modelfile):
        given = next(modelfile.parent.glob("*.gguf")).read_text(encoding="utf-8")
        another_serves("create")
        created.append(given)
        return OllamaResult(name, False, "")

    monkeypatch.setattr(champion_history, "write_folder", slow_write)
    monkeypatch.setattr(champion_history, "create", slow_create)
    serve_champion(lake, KEY, ollama=True)
    at_once[0].join()
    (model,) = (Path(lake.root.path) / "serving" / "shop" / "support").glob("*.gguf")
    assert model.read_text(encoding="utf-8") == created[-1] == "second"


def test_no_adapter_of_an_earlier_champion_is_left_beside_one_whose_adapter_is_gone(lake):
    first = export(lake, "first")
    files = {"adapter_config.json": "{}", "adapter_model.safetensors": "weights"}
    artifact(
        lake,
        "sft_adapter",
        KEY,
        {"base_model": "b", "base_revision": "1"},
        files,
        {},
        first.manifest["made_from"]["adapter"],
    )
    promote(lake, KEY)
    serve_champion(lake, KEY)
    folder = Path(lake.root.path) / "serving" / "shop" / "support"
    assert (folder / "adapter_model.safetensors").read_text(encoding="utf-8") == "weights"
    export(lake, "second")
    promote(lake, KEY)
    serve_champion(lake, KEY)
    assert not list(folder.glob("adapter*"))


@pytest.mark.parametrize("to", [None, 99])
def test_without_an_earlier_champion_there_is_nothing_to_roll_back_to(lake, to):
    export(lake, "only")
    promote(lake, KEY)
    with pytest.raises(DataError):
        rollback(lake, KEY, to)


def test_rotten_model_is_neither_promoted_nor_served(lake):
    """A GGUF of zero bytes of the right size was served."""
    first, second = export(lake, "first"), export(lake, "second")
    promote(lake, KEY, first.identity)
    assert what_is_served(lake) == "first"
    promote(lake, KEY, second.identity)
    (second.path / "model-f16.gguf").write_bytes(bytes(len("second")))
    with pytest.raises(DataError, match="model-f16"):
        serve_champion(lake, KEY)
    assert read_folder(lake, KEY).identity == first.identity[:16], "the folder is as it was"
    (first.path / "model-f16.gguf").write_bytes(bytes(len("first")))
    with pytest.raises(DataError, match="model-f16"):
        rollback(lake, KEY)
    assert lake.pointers("gguf_export", KEY).champion == second.identity


def test_rotten_artifact_is_not_used(lake):
    made = export(lake, "first")
    params = TaskParams(**task_values(lake.root, KEY))
    reference = ArtifactReference(**made.reference)
    assert params.find_artifact(reference).identity == made.identity
    (made.path / "model-f16.gguf").write_bytes(bytes(len("first")))
    with pytest.raises(DataError, match="is damaged"):
        params.find_artifact(reference)


def test_other_users_can_read_what_is_served(lake):
    """safetensors writes weights with mode 0600; vLLM under another user could not load them (huggingface/safetensors#782)."""
    adapter = artifact(
        lake,
        "sft_adapter",
        KEY,
        {"base_model": "b"},
        {"adapter_model.safetensors": "weights", "adapter_config.json": "{}"},
    )
    (adapter.path / "adapter_model.safetensors").chmod(0o600)
    exported = export(lake, "first")
    for _ in range(2):  # the second time every file is there
        write_folder(lake, KEY, exported, adapter)
        folder = Path(lake.root.path) / "serving" / "shop" / "support"
        modes = {path.name: path.stat().st_mode & 0o777 for path in folder.iterdir()}
        assert (
            len(set(modes.values())) == 1 and modes["adapter_model.safetensors"] == 0o666 & ~UMASK
        )
        (folder / "adapter_model.safetensors").chmod(0o600)
