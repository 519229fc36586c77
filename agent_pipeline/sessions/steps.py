"""The steps of one message: a model writes words, then calls, and then sees the results."""

from dataclasses import dataclass, field

from msgspec.structs import replace

from agent_pipeline.sessions.items import Item
from agent_pipeline.sessions.part_fields import join_texts


@dataclass
class Steps:
    """The items of one message, gathered part by part.

    A model writes words, then calls, and then sees the results. So results close a step, and what follows them is a new message.
    Calls whose parts hold their results too (the AI SDK's UI messages) belong to one step until a border or words come.
    """

    role: str
    trained: bool
    done: list[Item] = field(default_factory=list)
    thoughts: list[Item] = field(default_factory=list)
    words: list[Item] = field(default_factory=list)
    calls: list[Item] = field(default_factory=list)
    results: list[Item] = field(default_factory=list)
    others: list[Item] = field(default_factory=list)
    has_results_in_calls: bool = False
    is_spoken: bool = False

    def add_part(self, items: list[Item]) -> None:
        """Add what one part says."""
        kinds = [item.kind for item in items]
        holds_both = "function_call" in kinds and "function_call_output" in kinds
        goes_on = any(
            kind in ("words", "media", "reasoning", "border", "function_call") for kind in kinds
        )
        if (
            self.role == "assistant"
            and self.results
            and goes_on
            and not (holds_both and self.has_results_in_calls)
        ):
            self.close()
        self.has_results_in_calls = holds_both or (
            self.has_results_in_calls and "function_call_output" not in kinds
        )
        for item in items:
            self.add(item)

    def add(self, item: Item) -> None:
        """Add one item to the step that is open."""
        if item.kind in ("words", "media"):
            self.words.append(item)
        elif item.kind == "reasoning":
            self.thoughts.append(item)
        elif item.kind == "function_call":
            self.calls.append(item if self.trained else replace(item, trained=False))
        elif item.kind == "function_call_output":
            self.results.append(item)
        elif item.kind != "border":
            self.others.append(item)

    def close(self, cut: bool = False, empty: bool = False) -> None:
        """End the step: its items are in order then. `empty` makes a message of a step without words and calls."""
        if self.role != "assistant":  # results answer what came before
            self.done += self.results
            self.results = []
        self.done += self.others + self.thoughts
        has_more = bool(self.calls) or any(item.kind in ("", "unread") for item in self.others)
        has_words = any(word.text for word in self.words)
        words = self._said(cut) if has_words or ((self.words or empty) and not has_more) else []
        if not words and self.calls:
            self.calls[0] = replace(self.calls[0], first=True)
        if cut:
            self.calls = [replace(call, trained=False, cut=True) for call in self.calls]
        self.is_spoken |= bool(words or self.calls or self.results)
        self.done += words + self.calls + self.results
        self.thoughts, self.words, self.calls, self.results, self.others = [], [], [], [], []

    def items(self, cut: bool, empty: bool) -> list[Item]:
        """Return all items. If the message was cut off, that is true of its last step."""
        self.close(cut, empty=empty and not self.is_spoken and not self.results)
        return self.done

    def _said(self, cut: bool) -> list[Item]:
        """The words of the step as a message."""
        # What a model says comes in parts that may end within a sentence (before a citation, say).
        text = join_texts(
            (word.text for word in self.words), "" if self.role == "assistant" else "\n"
        )
        media = tuple(word.name for word in self.words if word.kind == "media")
        return [
            Item(
                "message",
                text,
                role=self.role,
                trained=self.trained and not cut,
                media=media,
                cut=cut,
            )
        ]
