"""The order in which the items of one message are stored.

A model writes text, then calls, and then sees the results. `items` combines the items of all
messages into a chat.
"""

from msgspec.structs import replace

from agent_pipeline.sessions.items import Item
from agent_pipeline.sessions.part_fields import join_texts


class MessageSteps:
    """The items of one message, collected part by part.

    A model writes text, then calls, and then sees the results. Results therefore close a step, and
    the next part begins a new message. If parts hold a call together with its result (the AI SDK's
    UI messages), their calls belong to one step until a border or text follows.

    Attributes:
        role: The role of the message.
        trained: Whether the message is trained on.
        done: The items of the closed steps, in order.
        thoughts: The thoughts of the open step.
        words: The texts and media marks of the open step.
        calls: The calls of the open step.
        results: The results of the open step.
        others: The items of the open step that a chat cannot hold.
    """

    def __init__(self, role: str, trained: bool) -> None:
        self.role = role
        self.trained = trained
        self.done: list[Item] = []
        self.thoughts: list[Item] = []
        self.words: list[Item] = []
        self.calls: list[Item] = []
        self.results: list[Item] = []
        self.others: list[Item] = []
        self._calls_hold_results = False
        self._is_spoken = False
        """True if a step that is already closed has text, calls or results."""

    def add_part(self, items: list[Item]) -> None:
        """Add the items of one message part to the open step."""
        kinds = {item.kind for item in items}
        holds_call_and_result = {"function_call", "function_call_output"} <= kinds
        begins_step = not kinds.isdisjoint(
            {"words", "media", "reasoning", "border", "function_call"}
        )
        stays_in_step = holds_call_and_result and self._calls_hold_results
        if self.role == "assistant" and self.results and begins_step and not stays_in_step:
            self.close()
        if holds_call_and_result:
            self._calls_hold_results = True
        elif "function_call_output" in kinds:
            self._calls_hold_results = False
        for item in items:
            self.add(item)

    def add(self, item: Item) -> None:
        """Add one item to the open step."""
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
        """Close the open step and put its items in order.

        Args:
            cut: Whether the step was cut off.
            empty: Whether a step without text and calls becomes an empty message.
        """
        if self.role != "assistant":  # results answer the message before
            self.done += self.results
            self.results = []
        self.done += self.others + self.thoughts
        message = self._make_message(cut, empty)
        if message is None and self.calls:
            self.calls[0] = replace(self.calls[0], first=True)
        if cut:
            self.calls = [replace(call, trained=False, cut=True) for call in self.calls]
        if message is not None:
            self.done.append(message)
        self._is_spoken |= message is not None or bool(self.calls or self.results)
        self.done += self.calls + self.results
        self.thoughts, self.words, self.calls, self.results, self.others = [], [], [], [], []

    def finish(self, cut: bool, empty: bool) -> list[Item]:
        """Close the last step and return all items.

        Args:
            cut: Whether the message was cut off, and therefore its last step.
            empty: Whether a message without content becomes an empty message.
        """
        self.close(cut, empty=empty and not self._is_spoken and not self.results)
        return self.done

    def _make_message(self, cut: bool, empty: bool) -> Item | None:
        """Return the text of the open step as a message, or None if the step has no message."""
        has_text = any(word.text for word in self.words)
        has_calls = bool(self.calls) or any(item.kind in ("", "unread") for item in self.others)
        is_empty_message = (bool(self.words) or empty) and not has_calls
        if not has_text and not is_empty_message:
            return None
        # A model's text comes in parts that may end within a sentence, for example before a
        # citation.
        seam = "" if self.role == "assistant" else "\n"
        return Item(
            "message",
            join_texts((word.text for word in self.words), seam),
            role=self.role,
            trained=self.trained and not cut,
            media=tuple(word.name for word in self.words if word.kind == "media"),
            cut=cut,
        )
