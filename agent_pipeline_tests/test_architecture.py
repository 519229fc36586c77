"""The rooms of the package: which may import which, read from the imports themselves, those within functions included."""

import ast
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1] / "agent_pipeline"

ROOMS = (
    "_compat", "json_types", "structs", "errors", "lazy_names", "options", "keys", "shares", "progress", "plugins", "sessions", "storage",
    "redaction", "notifications", "sources", "ingestion", "judging", "datasets", "selection",
    "models", "tokenization", "engine", "training", "evaluation", "reports", "export", "gateway", "promotion",
    "config", "readiness", "governance", "compute", "method_comparison", "worker", "compat", "sample", "pages",
    "testing", "defs",
    "definitions", "component", "cli",
)  # fmt: skip
"""From the bottom up: a room may import itself and those before it."""

LAUNCHERS = "compute.launchers"
DAGSTER_HOOKS = "_compat.dagster"
GRAPH = {"defs", "definitions", "component", "cli"}


def test_imports_point_only_downward() -> None:
    upward = {
        f"{module} imports {other}"
        for module, imports in ours().items()
        for other in imports
        if ROOMS.index(room(other)) > ROOMS.index(room(module))
    }
    assert not upward


def test_the_sample_imports_nothing_but_errors() -> None:
    assert {
        room(other)
        for module, imports in ours().items()
        if room(module) == "sample"
        for other in imports
    } <= {"sample", "errors"}


def test_no_modules_import_each_other_in_a_circle() -> None:
    try:
        TopologicalSorter(ours()).prepare()
    except CycleError as error:
        raise AssertionError(" → ".join(error.args[1])) from error


def test_no_module_imports_by_way_of_the_packages_lazy_names() -> None:
    assert not [module for module, names in imported().items() if "agent_pipeline" in names]


def test_only_the_graph_and_the_launchers_import_dagster_and_what_the_worker_runs_imports_no_launcher() -> (
    None
):
    def in_dagster(name: str) -> bool:
        return name.startswith("dagster") and name.partition(".")[0] != "dagster_pipes"

    importing = {module for module, names in imported().items() if any(map(in_dagster, names))}
    launching = {
        module
        for module, others in ours().items()
        if any(each.startswith((LAUNCHERS, DAGSTER_HOOKS)) for each in others)
    }
    assert {
        room(module)
        for module in importing | launching
        if not module.startswith((LAUNCHERS, DAGSTER_HOOKS))
    } <= GRAPH


def room(module: str) -> str:
    return module.partition(".")[0]


@cache
def modules() -> dict[str, Path]:
    """Every module by its name within the package; the package's own `__init__`, which names others in strings, is none."""
    files = {
        ".".join(file.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__"): file
        for file in PACKAGE.rglob("*.py")
    }
    return {name: file for name, file in files.items() if name != "__init__"}


@cache
def imported() -> dict[str, set[str]]:
    """By module, the dotted names of the modules that it imports anywhere."""
    names: dict[str, set[str]] = {module: set() for module in modules()}
    for module, file in modules().items():
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                names[module].update(alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                assert node.module and node.level == 0, f"{module} imports relatively"
                taken = (f"{node.module}.{alias.name}" for alias in node.names)
                names[module].update(
                    name if name.removeprefix("agent_pipeline.") in modules() else node.module
                    for name in taken
                )
    return names


@cache
def ours() -> dict[str, set[str]]:
    """By module, the modules of this package that it imports."""
    own = {name: f"agent_pipeline.{name}" for name in modules()}
    return {
        module: {name for name, full in own.items() if full in names}
        for module, names in imported().items()
    }


def test_check_results_are_made_in_one_place() -> None:
    """`defs.specs.check_result` gives every check that fails a reason."""
    modules = (PACKAGE / "defs").rglob("*.py")
    assert [
        path.name for path in modules if "AssetCheckResult(" in path.read_text(encoding="utf-8")
    ] == ["specs.py"]


def test_values_are_read_into_types_in_one_place() -> None:
    """msgspec's own functions crash if two threads use a type for the first time."""

    def reads_into_a_type(node: ast.AST) -> bool:
        if isinstance(node, ast.ImportFrom):
            return (node.module or "").startswith("msgspec.") and any(
                alias.name in ("decode", "Decoder") for alias in node.names
            )
        if not isinstance(node, ast.Call):
            return False
        function = ast.unparse(node.func)
        if function.startswith("msgspec.") and function.endswith(".decode"):
            return bool(node.keywords)  # without a type, no description is built
        return function == "msgspec.convert" or (
            function.startswith("msgspec.") and function.endswith(".Decoder") and bool(node.args)
        )

    assert {
        module
        for module, file in modules().items()
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if reads_into_a_type(node)
    } == {"structs"}


EPISODES_IN_FORCE = "promotion.episodes_in_force"
READERS_OF_EPISODES = {
    "cli.report",
    "defs.private_data",
    "pages.episodes",
    "promotion.champions",
    "promotion.decision_facts",
    "promotion.decision_page",
    "promotion.hub",
    "promotion.stored_scores",
    "reports.episode_page",
}
"""Modules that read the content of an artifact `episodes`. They do not search for it."""
FINDS_ARTIFACTS = {"latest", "find", "find_undamaged", "finished", "history", "pointers"}


def test_last_episodes_are_found_in_one_place() -> None:
    """A reader that searches by itself may use episodes of another world."""
    searching = {
        module
        for module, file in modules().items()
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute | ast.Name)
        and (node.func.attr if isinstance(node.func, ast.Attribute) else node.func.id)
        in FINDS_ARTIFACTS
        and any(names_episodes(argument) for argument in node.args)
    }
    # `comparison` finds the episodes that its own task has just played, by their identity.
    assert searching == {EPISODES_IN_FORCE, "promotion.comparison"}


def names_episodes(argument: ast.expr) -> bool:
    """Return whether an argument is the name of the asset `episodes`."""
    return ast.unparse(argument) in ("'episodes'", "EPISODES", "episodes_in_force.EPISODES")


def test_readers_of_episodes_are_known() -> None:
    """A new reader gets its episodes from `find_last_episodes`. Then it may be added here."""
    content = {"read_episode_report", "make_episode_page", "TRANSCRIPTS"}
    content |= {"read_transcripts", "read_varied_transcripts"}
    reading = {
        module
        for module, file in modules().items()
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom)
        and (node.module or "").endswith((".episode_report", ".episode_page", ".stored_scores"))
        and content & {alias.name for alias in node.names}
    }
    assert reading == READERS_OF_EPISODES


def test_no_list_of_searched_artifacts_names_episodes() -> None:
    """A loop over names of assets finds the last episodes of any world."""
    naming = set()
    for module, file in modules().items():
        tree = ast.parse(file.read_text(encoding="utf-8"))
        calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
        finds = any(
            isinstance(call.func, ast.Attribute)
            and call.func.attr in FINDS_ARTIFACTS
            and ast.unparse(call.func.value) in ("lake", "self.lake")
            for call in calls
        )
        edges = [
            keyword.value for call in calls for keyword in call.keywords if keyword.arg == "deps"
        ]
        if finds and any(
            isinstance(node, ast.Tuple | ast.List | ast.Set)
            and node not in edges
            and any(names_episodes(item) for item in node.elts)
            for node in ast.walk(tree)
        ):
            naming.add(module)
    assert not naming
