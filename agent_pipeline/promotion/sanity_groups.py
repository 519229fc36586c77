"""The groups of sanity questions. Each group is compared as a whole.

The names are stored in the lake and in ledgers, so they keep their first form. `describe_group`
returns a name for people. The questions are in `sanity_questions`.
"""

SANITY_PREFIX = "canary: "
PLAIN_QUESTIONS = f"{SANITY_PREFIX}plain questions"
NO_TOOL_NEEDED = f"{SANITY_PREFIX}no tool is needed"
OTHER_AGENTS_TURNS = f"{SANITY_PREFIX}other agents' turns"
NO_REFUSAL = f"{SANITY_PREFIX}no refusal at other agents' turns"


def describe_group(group: str) -> str:
    """Return the name of a question group for users."""
    return f"sanity questions: {group.removeprefix(SANITY_PREFIX)}"
