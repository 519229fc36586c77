"""Tasks under varied conditions: what the model sees changes, and the task stays."""

import json
from contextlib import nullcontext

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_pipeline.compute.playing import play_all
from agent_pipeline.errors import SettingsError
from agent_pipeline.evaluation.episodes import EpisodeReply, Player, play
from agent_pipeline.evaluation.variants import (
    GENERAL_VARIANTS,
    ShownRequest,
    add_unused_tool,
    choose_variants,
    name_of,
    properties_of,
    rename_tool,
    turn_tools,
    vary_tasks,
)
from agent_pipeline.reports.episode_report import (
    Share,
    find_variant_warnings,
    variant_rows,
    write_transcripts,
)
from agent_pipeline.sample.shop import World as Shop

WORLD = f"{__name__}:Desk"


class Desk:
    """A desk with notes by id, of which a task deletes one or none. In the variant `stubborn`, the
    right note is another one.
    """

    variants = ("stubborn",)
    reset_with: list[dict] = []

    def reset(self, task_key: str, variant: str = "", **row) -> str:
        self.reset_with.append({"variant": variant, **row})
        self._notes, self._wanted = {"a", "b", "c"}, task_key
        if variant == "stubborn":
            self._wanted = "b" if task_key == "a" else "a"
        self._start = set(self._notes)
        self.must_act = True
        self.system = "Call `find` first, then drop one note."
        return f"Drop the note {self._wanted}."

    def get_reward(self) -> float:
        return float(self._notes == self._start - {self._wanted})

    @property
    def wrong_changes(self) -> list[str]:
        return sorted(self._start - self._notes - {self._wanted})

    def find(self, note: str) -> str:
        """Find a note.

        Args:
            note: The id.
        """
        return str(note in self._notes)

    def erase_note(self, note: str) -> str:
        """Erase a note.

        Args:
            note: The id.
        """
        self._notes.remove(note)
        return "ok"


def tool(name: str, **parameters: str) -> dict:
    properties = {parameter: {"type": kind} for parameter, kind in parameters.items()}
    schema = {"type": "object", "properties": properties, "required": list(properties)}
    return {"type": "function", "function": {"name": name, "parameters": schema}}


def call(name: str, **arguments: object) -> dict:
    function = {"name": name, "arguments": json.dumps(arguments)}
    calls = [{"id": "c", "type": "function", "function": function}]
    return {"role": "assistant", "content": "", "tool_calls": calls}


DONE = {"role": "assistant", "content": "Done."}


def reading_player(conversations):
    """A model that reads the tools: it calls the eraser by its shown name, and believes the user."""
    replies = []
    for conversation in conversations:
        schema = next(each for each in conversation.tools if "note" in name_of(each))
        (parameter,) = properties_of(schema)
        note = conversation.messages[1]["content"].split()[-1].rstrip(".")
        is_begun = conversation.messages[-1]["role"] == "tool"
        message = DONE if is_begun else call(name_of(schema), **{parameter: note})
        replies.append(EpisodeReply(message))
    return replies


def learned_by_heart(note_of) -> Player:
    """A model that calls what it learned, whatever it sees."""

    def reply(conversations):
        return [
            EpisodeReply(
                DONE
                if conversation.messages[-1]["role"] == "tool"
                else call("erase_note", note=note_of(conversation))
            )
            for conversation in conversations
        ]

    return reply


def always(message: dict) -> Player:
    return lambda conversations: [EpisodeReply(message) for _ in conversations]


ROWS = [{"task_key": "a"}, {"task_key": "b"}]


def test_a_model_that_reads_the_request_does_every_variant():
    rows = vary_tasks(ROWS, choose_variants(["all"], WORLD), most=30)
    episodes = play(Desk, rows, reading_player)
    assert {episode.variant for episode in episodes} == {*GENERAL_VARIANTS, "stubborn"}
    assert all(episode.done and not episode.wrong_changes for episode in episodes), episodes
    assert all(row["variant"] in ("", "stubborn") for row in Desk.reset_with)


def test_a_call_by_the_old_name_is_no_call_of_the_renamed_tool():
    """Otherwise a model that does not read its tools would pass."""
    rows = vary_tasks(ROWS, ["renamed_tool"], most=30)
    episodes = play(Desk, rows, learned_by_heart(lambda conversation: "a"))
    for episode in episodes:
        assert not episode.done and not episode.wrong_changes
        result = episode.messages[3]["content"]
        assert result in ('{"error":"no such tool"}', '{"error":"wrong arguments"}')
        assert "is called" in episode.change


def test_the_tool_that_no_task_needs_comes_first_and_its_calls_are_counted():
    def first_tool(conversations):
        return [
            EpisodeReply(
                DONE
                if conversation.messages[-1]["role"] == "tool"
                else call(name_of(conversation.tools[0]), city="Rome")
            )
            for conversation in conversations
        ]

    (episode, _) = play(Desk, vary_tasks(ROWS, ["unused_tool"], most=30), first_tool)
    assert episode.unused_calls == 1 and episode.calls == 1
    assert episode.messages[3]["content"] == '{"error":"no such tool"}'
    assert name_of(episode.tools[0]) not in ("find", "erase_note")


def test_every_tool_changes_its_position():
    tools = [tool(name) for name in "abc"]
    turned = turn_tools(ShownRequest([], tools), "t")
    assert turned is not None
    assert all(first != second for first, second in zip(tools, turned.tools, strict=True))
    assert turn_tools(ShownRequest([], tools[:1]), "t") is None


@pytest.mark.parametrize(
    ("system", "shown"),
    [
        ("Be kind.", "Be kind."),
        ("Use `refund` with care.", "Use `issue_refund` with care."),
        ("Call refund(order) with care.", "Call issue_refund(order) with care."),
        ("Else refund the order.", "Else refund the order."),
        ("Use `refund`, or refund by hand.", "Use `issue_refund`, or refund by hand."),
    ],
)
def test_an_ordinary_word_of_the_system_message_stays(system, shown):
    """The tool is renamed all the same: a request can rename `refund` and keep the verb."""
    messages = [{"role": "system", "content": system}, {"role": "user", "content": "refund?"}]
    renamed = rename_tool(ShownRequest(messages, [tool("refund", id="string")]), "t")
    assert name_of(renamed.tools[0]) == "issue_refund"
    assert renamed.messages[0]["content"] == shown
    assert renamed.messages[1] == messages[1]
    assert renamed.change == "`refund` is called `issue_refund`, `id` is called `id_ref`"


NAMES = st.sampled_from(
    ["find", "find_orders", "refund", "issue_refund", "run_x", "x", "cancel", "call_off", "id_ref"]
)
PARAMETERS = st.dictionaries(
    st.sampled_from(["id", "id_ref", "order", "order_ref", "amount", "refund", "amount_value"]),
    st.sampled_from(["string", "integer", "boolean", "array"]),
    max_size=4,
)
TOOLS = st.dictionaries(NAMES, PARAMETERS, max_size=6)


@given(TOOLS, st.text(max_size=3), st.sampled_from(["", "`refund` it.", "refund id_ref, x."]))
def test_a_shown_call_is_the_world_s_call_and_no_name_stands_for_two(tools, key, system):
    schemas = [tool(name, **parameters) for name, parameters in tools.items()]
    messages = [{"role": "system", "content": system}]
    for change in GENERAL_VARIANTS.values():
        request = change(ShownRequest(messages, schemas), key)
        if request is None:
            continue
        shown = [each for each in request.tools if not request.is_unused(name_of(each))]
        assert len({name_of(each) for each in request.tools}) == len(request.tools)
        called = {}
        for each in shown:
            assert set(each["function"]["parameters"]["required"]) == set(properties_of(each))
            arguments = {name: schema["type"] for name, schema in properties_of(each).items()}
            name, real = request.find_call(name_of(each), arguments)
            called[name] = real
        assert called == tools
        hidden = tools.keys() - {name_of(each) for each in request.tools}
        assert all(request.find_call(name, {})[0] == "" for name in hidden)
        assert all(
            request.find_call(name, {})[0] == ""
            for name in request.names
            if request.is_unused(name)
        )


def test_a_world_with_the_names_of_the_unused_tool_does_not_get_it():
    request = ShownRequest([], [tool("air_quality"), tool("air_quality_of_city")])
    assert add_unused_tool(request, "t") is None


def test_a_variant_that_the_world_does_not_offer_is_refused():
    assert choose_variants(["all"], WORLD) == [*GENERAL_VARIANTS, "stubborn"]
    assert choose_variants([], WORLD) == []
    assert choose_variants(["stubborn", "tool_order"], WORLD) == ["stubborn", "tool_order"]
    with pytest.raises(SettingsError, match="changed_rule"):
        choose_variants(["changed_rule"], WORLD)


def played(player: Player, variants: list[str], most: int = 30):
    """The report of the exported model, its base and the recorded agent."""
    players = {"model": nullcontext([player, player]), "base": nullcontext(always(DONE))}
    recorded = {row["task_key"]: [DONE] for row in ROWS}
    rows = ROWS + vary_tasks(ROWS, variants, most)
    return play_all(WORLD, rows, players, recorded, 6, 1)


def test_only_the_exported_model_plays_variants_and_the_figures_stand_apart():
    report, episodes = played(reading_player, ["tool_order", "stubborn"], most=1)
    assert [len(episodes[name]) for name in ("model", "base", "recorded")] == [4, 2, 2]
    assert report.tasks == 2 and report.model.done == Share(2, 2)
    assert report.variants.keys() == {"tool_order", "stubborn"}
    assert report.variants["stubborn"].varied.done == Share(1, 1)
    assert report.unmeasured_variants.keys() == {"unused_tool", "renamed_tool"}
    assert find_variant_warnings(report) == [] and report.against == []


def test_harm_in_a_variant_is_listed_and_the_plain_figures_stay(tmp_path):
    """The model learned the notes by heart, so that it is wrong where the note is another one."""
    by_heart = learned_by_heart(lambda conversation: "b" if conversation.number % 2 else "a")
    report, episodes = played(by_heart, ["stubborn", "renamed_tool"])
    assert report.model.harm == Share(0, 2) and report.model.done == Share(2, 2)
    stubborn = report.variants["stubborn"]
    assert stubborn.varied.harm == Share(2, 2) and stubborn.plain.harm == Share(0, 2)
    assert stubborn.harmful == ["a", "b"]
    warnings = find_variant_warnings(report)
    assert [sentence.split(",")[0] for sentence in warnings] == [
        "in the variant stubborn",
        "in the variant stubborn",
        "in the variant renamed_tool",
    ]
    rows = {(row[0], row[1]): row for row in variant_rows(report)}
    assert rows["stubborn", "as they are"][2] == "2 of 2"
    assert rows["stubborn", "in the variant"][2].startswith("0 of 2 [0 %")
    assert rows["tool_order", "not measured: it was not played"][2] == "–"
    write_transcripts(tmp_path, report, episodes)
    page = (tmp_path / "episodes.md").read_text(encoding="utf-8")
    assert "## model, variant stubborn" in page and "is called" in page
    lines = (tmp_path / "episodes.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["variant"] for line in lines if '"model"' in line] == [
        "", "", "stubborn", "stubborn", "renamed_tool", "renamed_tool"
    ]  # fmt: skip


def test_the_sample_s_shop_can_be_played_in_every_general_variant():
    rows = vary_tasks(Shop.fresh_tasks(4, 1001, "support-001"), list(GENERAL_VARIANTS), most=4)
    episodes = play(Shop, rows, always({"role": "assistant", "content": "Sorry."}))
    assert len(episodes) == 12 and all(episode.change for episode in episodes)
