"""`python -m benchmarks.week FOLDER [NIGHTS]`: a week of unattended nights on the sample's `shop/support`, and one picture of it.

The store begins with the sessions of some weeks. Each day more arrive, and the champion (once there is one) plays tasks of a fresh seed,
whose transcripts join the store with the world's verdicts. Each night the sensor and the schedule look, and the job that the schedule asks
for runs with `approve = "auto"`. One night every verdict of the store says the opposite, another night the database of the sessions is cut
in half; both are repaired the next morning.

The first champion is a person's: where the decision holds a first candidate back, for its harm say, it is promoted by hand the next
morning. Every later one promotes itself or is not promoted.

What is served after each night plays the same fresh tasks, which are in no session of the week: tasks done, and harm. The week lives in
FOLDER, which holds a line for each finished night: a week that was stopped goes on, and NIGHTS says how many nights to go on for.
`week.png` and `week.md` in FOLDER show what there is.
"""

import json
import os
import resource
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec

DAYS, BROKEN, POISONED = 7, 3, 5
BACKLOG, ARRIVALS, PLAYED, MEASURED = 260, 40, 12, 40
"""Sessions of the first day; those that arrive, and tasks that the champion plays, on each further day; fresh tasks that measure what is
served."""
MEASURED_SEED, PLAYED_SEED, FIRST_NIGHT = 9001, 2000, datetime(2026, 11, 2, 2, tzinfo=UTC)
WORLD = "agent_pipeline.sample.shop:World"
SETTINGS = f"""
store = {{stores}}
lake = "lake"
[split]
test = 0.1
select = 0.18
[assets.champion]
approve = "auto"
[assets.curated_sessions]
served_model_sessions = "keep"
[assets.evaluation]
max_samples = 16
[assets.gguf_export]
outtypes = ["f16"]
max_conversations = 16
[assets.episodes]
max_tasks = 16
fresh_tasks = 44
[agents."shop/support"]
world = "{WORLD}"
"""


def arrive(folder: Path, day: int) -> None:
    """The stores as they are on a day: all sessions that have arrived, and those that the champions played."""
    from agent_pipeline.sample.cast import CAST
    from agent_pipeline.sample.draw import DEFAULT_SEED
    from agent_pipeline.sample.judge import Verdict
    from agent_pipeline.sample.record import OPPOSITE, record
    from agent_pipeline.sample.store import write_sessions, write_verdicts

    sessions = record(CAST[0], DEFAULT_SEED)[: BACKLOG + ARRIVALS * (day - 1)]
    if day == POISONED:
        turned = [
            [each and Verdict(OPPOSITE[each.judgment], each.reason) for each in session.verdicts]
            for session in sessions
        ]
        sessions = [
            replace(session, verdicts=verdicts)
            for session, verdicts in zip(sessions, turned, strict=True)
        ]
    home = folder / "store"
    database, verdicts = (
        home / "sessions" / CAST[0].partition / "sessions.db",
        home / "traces" / "shop.db",
    )
    for file in (database, verdicts):
        file.unlink(missing_ok=True)
    write_sessions(database, sessions)
    write_verdicts(verdicts, sessions)
    stores = [home]
    for played in sorted(folder.glob("played/*/shop.jsonl")):
        lines = [json.loads(line) for line in played.read_text(encoding="utf-8").splitlines()]
        if day == POISONED:
            lines = [line | {"judgment": OPPOSITE[line["judgment"]]} for line in lines]
        stores.append(folder / "store-played" / played.parent.name / played.name)
        stores[-1].parent.mkdir(parents=True, exist_ok=True)
        stores[-1].write_text(
            "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines), encoding="utf-8"
        )
    if day == BROKEN:
        os.truncate(database, database.stat().st_size // 2)
    (folder / "pipeline.toml").write_text(
        SETTINGS.format(stores=json.dumps(list(map(str, stores)))), encoding="utf-8"
    )


def night(day: int) -> dict[str, Any]:
    """What the sensor, the schedule and its runs make of a night, with what they said."""
    import dagster as dg

    from agent_pipeline.cli.instance import open_instance
    from agent_pipeline.definitions import defs
    from agent_pipeline.defs.automation.discovery import discover_agents
    from agent_pipeline.defs.partitions import AGENTS
    from agent_pipeline.defs.resources import Workspace

    with open_instance() as instance:
        for left in instance.get_runs(dg.RunsFilter(statuses=[dg.DagsterRunStatus.STARTED])):
            instance.report_run_canceled(left)  # of a week that was stopped
        found: Any = discover_agents(
            dg.build_sensor_context(instance=instance, resources={"workspace": Workspace()})
        )
        for request in getattr(found, "dynamic_partitions_requests", None) or ():
            instance.add_dynamic_partitions(AGENTS.name or "", list(request.partition_keys))
        repository = defs.get_repository_def()
        when = FIRST_NIGHT + timedelta(days=day)
        context = dg.build_schedule_context(
            instance,
            scheduled_execution_time=when,
            repository_def=repository,
            resources={"workspace": Workspace()},
        )
        tick = repository.get_schedule_def("nightly").evaluate_tick(context)
        said = [text for text in (getattr(found, "skip_message", None), tick.skip_message) if text]
        runs, failed, warned = 0, [], []
        for request in tick.run_requests or ():
            runs += 1
            result = defs.resolve_job_def("retrain").execute_in_process(
                instance=instance,
                partition_key=request.partition_key,
                run_config={"loggers": {"console": {}}, **(request.run_config or {})},
                tags=dict(request.tags),
                raise_on_error=False,
            )
            for event in result.filter_events(lambda event: event.is_step_failure):
                data = event.step_failure_data
                failed.append(
                    (data.user_failure_data and data.user_failure_data.description)
                    or str(data.error_display_string)[-1000:]
                )
            warned += [
                each.check_name for each in result.get_asset_check_evaluations() if not each.passed
            ]
    return {"runs": runs, "failed": failed, "warned": warned, "said": said}


def measure(folder: Path) -> Iterator[tuple[str, Any]]:
    """What is served, the last decision, and the tasks done and harm of what is served: of the base model, where nothing is."""
    from agent_pipeline.compute.params import common_params
    from agent_pipeline.compute.playing import gguf_player, memory_player, play_all, tasks_to_play
    from agent_pipeline.config.settings import load_settings
    from agent_pipeline.export.serving_folder import served_form
    from agent_pipeline.keys import PartitionKey
    from agent_pipeline.promotion.champions import SERVING
    from agent_pipeline.promotion.decision_wording import describe_outcome, describe_reasons
    from agent_pipeline.promotion.ledger import EXPORT, open_ledger

    key, settings = PartitionKey("shop", "support"), load_settings()
    lake = settings.open_lake()
    yield (
        "decisions",
        [
            {
                "candidate": each.candidate[:8],
                "outcome": describe_outcome(each.decision),
                "why": describe_reasons(each.decision),
            }
            for each in open_ledger(lake, key).records()
        ],
    )
    champion, pointers = lake.champion(EXPORT, key), lake.pointers(SERVING, key)
    yield "champion", champion and champion.identity[:8]
    served = lake.find(SERVING, key, pointers.latest) if pointers.latest else None
    served_identity = served.manifest["made_from"][EXPORT] if served else None
    export = lake.find(EXPORT, key, served_identity) if served_identity else None
    yield "served", export and export.identity[:8]
    cache = folder / f"measured-{export.identity[:8] if export else 'base'}.json"
    if not cache.exists():
        tasks = tasks_to_play(WORLD, [], 0, MEASURED, MEASURED_SEED, like="support-")
        player: Any
        if export:
            player = gguf_player(served_form(lake, export), 96, 2048, 0.0)
        else:
            adapter = settings.candidate(key)
            base = common_params(settings, key).base_of(adapter)
            player = memory_player(base, adapter.path, None, 96, 2048)
        report, _ = play_all(WORLD, tasks, {"model": player}, {}, 12, 1)
        cache.write_text(msgspec.json.encode(report.model).decode(), encoding="utf-8")
    yield "figures", json.loads(cache.read_text(encoding="utf-8"))


def promote_first() -> str | None:
    """Promote the latest export by hand where there is no champion and the decision holds it back for a person to look at."""
    from agent_pipeline.cli.champions import promote
    from agent_pipeline.config.settings import load_settings
    from agent_pipeline.keys import PartitionKey
    from agent_pipeline.promotion.ledger import EXPORT, open_ledger

    key, lake = PartitionKey("shop", "support"), load_settings().open_lake()
    records = open_ledger(lake, key).records()
    if lake.champion(EXPORT, key) or not records or records[-1].decision.outcome != "hold":
        return None
    promote(
        "shop/support", records[-1].candidate, why="the first champion: its episodes were looked at"
    )
    return records[-1].candidate[:8]


def counts() -> dict[str, int]:
    """Sessions in the lake, those that are kept, and rows that were trained on."""
    from agent_pipeline.config.settings import load_settings
    from agent_pipeline.keys import PartitionKey

    key, lake = PartitionKey("shop", "support"), load_settings().open_lake()
    curated = lake.open("curated_sessions", key).read(["kept"])["kept"].to_pylist()
    chosen = lake.open("sft_coreset", key).read(["chosen"])["chosen"].to_pylist()
    return {"sessions": len(curated), "kept": sum(curated), "rows": sum(chosen)}


def one_day(folder: Path, day: int) -> dict[str, Any]:
    """A day and its night, with what came of it."""
    from agent_pipeline.cli.play import play
    from agent_pipeline.config.settings import load_settings
    from agent_pipeline.keys import PartitionKey
    from agent_pipeline.promotion.ledger import EXPORT

    began, wall = cpu_minutes(), time.monotonic()
    by_hand = promote_first() if day > 1 else None
    played = folder / "played" / f"day-{day}"
    if (
        day > 1
        and not (played / "shop.jsonl").exists()
        and load_settings().open_lake().champion(EXPORT, PartitionKey("shop", "support"))
    ):
        play("shop/support", played, model="champion", tasks=PLAYED, seed=PLAYED_SEED + day)
    arrive(folder, day)
    of_night = night(day)
    of_day = {
        "day": day,
        **of_night,
        **counts(),
        "played": played.exists(),
        "by_hand": by_hand,
        **dict(measure(folder)),
    }
    return of_day | {
        "minutes": cpu_minutes() - began,
        "wall_minutes": (time.monotonic() - wall) / 60,
    }


def outcome(days: list[dict[str, Any]], number: int) -> str:
    """What came of a night, in a few words."""
    day, before = days[number], days[number - 1]["decisions"] if number else []
    if not day["runs"]:
        return "no run"
    if day["failed"]:
        return "the run failed"
    return (
        day["decisions"][-1]["outcome"].partition(":")[0]
        if len(day["decisions"]) > len(before)
        else "nothing to decide"
    )


def table(days: list[dict[str, Any]]) -> str:
    """A line a night, as Markdown."""
    what = {POISONED: "all verdicts inverted", BROKEN: "database cut in half"}
    head = [
        "night",
        "",
        "sessions read",
        "kept",
        "trained on",
        "decision on the candidate",
        "served",
        "tasks done",
        "harm",
    ]
    rows = [
        [
            str(day["day"]),
            what.get(day["day"], ""),
            *(str(day[name]) if day["runs"] else "–" for name in ("sessions", "kept", "rows")),
            outcome(days, number),
            (day["served"] or "nothing; measured is the base")
            + (" (champion)" if day["served"] and day["champion"] else ""),
            *("{n} of {of}".format(**day["figures"][name]) for name in ("done", "harm")),
        ]
        for number, day in enumerate(days)
    ]
    return "\n".join(f"| {' | '.join(row)} |" for row in [head, ["---"] * len(head), *rows])


def picture(days: list[dict[str, Any]], path: Path) -> None:
    """Tasks done and harm of what is served after each night, and what the night decided."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4), dpi=100, layout="constrained")
    FigureCanvasAgg(figure)
    axes, nights = figure.subplots(), [day["day"] for day in days]
    for name, label, colour in (("done", "tasks done", "#4f43dd"), ("harm", "harm", "#b42318")):
        shares = [100 * day["figures"][name]["n"] / day["figures"][name]["of"] for day in days]
        axes.plot(nights, shares, "o-", color=colour, label=label)
        for night_, share in zip(nights, shares, strict=True):
            axes.annotate(
                f"{share:.0f} %",
                (night_, share),
                xytext=(0, 7),
                textcoords="offset points",
                ha="center",
                color=colour,
                fontsize=8,
            )
    for night_, what in ((POISONED, "every verdict inverted"), (BROKEN, "store broken")):
        if night_ in nights:
            axes.axvspan(night_ - 0.5, night_ + 0.5, color="#f0e6d8", zorder=0)
            axes.text(night_, 103, what, ha="center", fontsize=8)
    axes.set_xticks(
        nights,
        [f"night {night_}\n{outcome(days, number)}" for number, night_ in enumerate(nights)],
        fontsize=8,
    )
    axes.set(
        ylim=(-4, 110),
        xlim=(0.5, DAYS + 0.5),
        ylabel=f"% of {MEASURED} fresh tasks, by what is served",
    )
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="center left", fontsize=8)
    figure.savefig(path)


def cpu_minutes() -> float:
    """Of this process and those that it started."""
    return (
        sum(
            each.ru_utime + each.ru_stime
            for each in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
        )
        / 60
    )


def main() -> None:
    folder = Path(sys.argv[1]).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    os.environ |= {
        "AGENT_PIPELINE_CONFIG": str(folder / "pipeline.toml"),
        "DAGSTER_HOME": str(folder / "dagster"),
    }
    lines = folder / "week.jsonl"
    days = (
        [json.loads(line) for line in lines.read_text(encoding="utf-8").splitlines()]
        if lines.exists()
        else []
    )
    for _ in range(int(sys.argv[2]) if len(sys.argv) > 2 else DAYS):
        if len(days) == DAYS:
            break
        days.append(one_day(folder, len(days) + 1))
        with lines.open("a", encoding="utf-8") as file:
            file.write(json.dumps(days[-1], ensure_ascii=False) + "\n")
        print(json.dumps(days[-1], ensure_ascii=False, indent=1), flush=True)
        picture(days, folder / "week.png")
        (folder / "week.md").write_text(
            f"{table(days)}\n\n{sum(day['minutes'] for day in days):.0f} minutes of CPU time.\n",
            encoding="utf-8",
        )


if __name__ == "__main__":
    main()
