"""Conversations made from the steps of a session.

The input of each model call repeats the conversation so far, so only new messages are added.
Messages are compared by their content: without ids, reasoning, and the system prompt at the
beginning. A call continues a conversation if its input begins with messages of the conversation, in
order and up to its last message. The input may lack some messages, because a window or a summary
removed them. If an input is repeated, it is a repeated record or a retry, and the last answer
counts. A call that continues no conversation (of a sub-agent, a guard or a fork) begins a separate
conversation.

Some services store the conversation and receive only the new messages. A result without its call is
evidence of this: it continues the conversation in which its call is open. Other messages continue a
conversation of the same agent, if such a result came before or if the system prompts are equal.
Equal prompts are no evidence if a later trace of the agent begins with an input that repeats an
answer: the application then repeats the conversation, so a call saw exactly its own input.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence, Set
from dataclasses import replace
from os.path import commonprefix

from agent_pipeline.sessions.chat import read_items
from agent_pipeline.sessions.items import mark_cut_text, mark_unread
from agent_pipeline.sources.formats.clock import mask_clock
from agent_pipeline.sources.formats.model_calls import is_damaged, with_reason
from agent_pipeline.sources.platforms.conversation import (
    Conversation,
    Items,
    ModelAnswer,
    add,
    key_of,
    leave_untrained,
    open_calls,
    split_head,
    steps_around,
    trained_answers,
    untrained,
)
from agent_pipeline.sources.platforms.spans import MISSING_MESSAGE, Span, in_order
from agent_pipeline.sources.platforms.tool_sets import keep_one_tool_set
from agent_pipeline.sources.platforms.tool_spans import (
    add_results,
    kind_of_tool_span,
    mark_failed,
    tool_items,
)

Agent = tuple[str, ...]
"""The system prompt of an agent, without dates, times and other numbers."""

_NUMBER = re.compile(r"\d+")


def conversations_in(spans: list[Span]) -> list[Conversation]:
    """Return the conversations that the steps of a session recorded.

    The main conversation comes first, then the others.
    """
    conversations = conversations_of(_calls(spans))
    tools = in_order(span for span in spans if span.kind == "tool")
    if not conversations:
        return [_without_model_text(spans, tools)]
    main = main_conversation(conversations)
    for conversation in conversations:
        mark_failed(conversation, tools)
        tools = add_results(conversation, tools)
        conversation.system = conversation.system or _system_around(conversation, spans)
    for span in tools:
        kind = kind_of_tool_span(span, conversations, spans)
        main.skipped[kind or f"unread:tool span {span.name}"] += 1
        if kind is None:
            main.damage["unread"] += 1
    return [main, *(conversation for conversation in conversations if conversation is not main)]


def conversations_of(calls: Iterable[Span]) -> list[Conversation]:
    """Return the conversations of a session's model calls, in the order in which they began."""
    conversations: list[Conversation] = []
    calls = in_order(calls)
    repeating = _repeating_agents(calls)
    # If all inputs are hidden, an answer lacks its question. If some calls have inputs, calls
    # without an input may be the tokens of a stream.
    unasked: list[object] = (
        [None] if any(call.prompt for call in calls) else [mark_cut_text("request")]
    )
    for call in calls:
        request = read_items(call.prompt or unasked)
        system, request_items = split_head(request)
        _place(
            conversations,
            call,
            system,
            request_items,
            read_items([*request, *call.answered])[len(request) :],
            repeating,
        )  # the messages before an answer help to read it
    for conversation in conversations:
        _keep_one_system_prompt(conversation)
        keep_one_tool_set(conversation)
    return conversations


def _keep_one_system_prompt(conversation: Conversation) -> None:
    """Choose the system prompt of most answers, and do not train the answers to other prompts.

    If several prompts are as frequent, the first counts. Prompts that differ only in dates and
    times are one prompt. An answer whose call states no prompt may have had any.
    """
    if all(
        _same_system(conversation.system, answer.system) for answer in conversation.model_answers
    ):
        return
    answers = [answer for answer in trained_answers(conversation) if answer.system]
    counts = Counter(_without_clock(answer.system) for answer in answers)
    if not counts:
        return
    [(kept, _)] = counts.most_common(1)
    conversation.system = next(
        answer.system for answer in answers if _without_clock(answer.system) == kept
    )
    others = [answer for answer in answers if _without_clock(answer.system) != kept]
    conversation.skipped["changed_system_prompt"] += len(others)
    conversation.skipped["changed_clock"] += sum(
        not _same_system(conversation.system, answer.system) for answer in answers
    ) - len(others)
    conversation.skipped = +conversation.skipped
    leave_untrained(conversation, others)


def _repeating_agents(calls: Iterable[Span]) -> set[Agent]:
    """Return the agents of which a later trace begins with a request that repeats an answer.

    The other calls of a trace, such as a title, say nothing about the agent.
    """
    repeating: set[Agent] = set()
    traces: dict[Agent, set[str]] = defaultdict(set)
    for call in calls:
        system, _ = split_head(read_items(call.prompt[:1]))
        agent = _agent_of(system)
        if call.trace not in traces[agent]:
            if traces[agent] and _repeats_an_answer(read_items(call.prompt)):
                repeating.add(agent)
            traces[agent].add(call.trace)
    return repeating


def _agent_of(system: Items) -> Agent:
    """Return what the system prompts of one agent have in common.

    This is the text of the first message without numbers.
    """
    return tuple(_NUMBER.sub("0", text) for text in _without_clock(system[:1]))


def _repeats_an_answer(request: Items) -> bool:
    """Return whether a request holds words or calls of the model."""
    return any(item.role == "assistant" or item.kind == "function_call" for item in request)


def main_conversation(conversations: Sequence[Conversation]) -> Conversation:
    """Return the conversation with the longest duration.

    If several conversations lasted equally long, the conversation with the most items counts, then
    the first.
    """
    return max(
        conversations, key=lambda conversation: (conversation.seconds, len(conversation.keys))
    )


def _place(
    conversations: list[Conversation],
    call: Span,
    system: Items,
    request_items: Items,
    answered: Items,
    repeating: Set[Agent],
) -> None:
    """Add a model call to the conversation that it continues, or start a new conversation.

    `repeating` are the agents whose application repeats the conversation.
    """
    keys = [key for key in map(key_of, request_items) if key is not None]
    answer = [key for key in map(key_of, answered) if key is not None]
    continued = [
        (count, index)
        for index, conversation in enumerate(conversations)
        if (count := _continued(conversation.keys, keys))
    ]
    if continued:
        count, index = max(continued)
        if call.trace != conversations[index].calls[-1].trace:
            conversations[index].is_repeated = True
        _go_on(conversations[index], call, system, _after(request_items, count), answered)
        return
    alike = [
        conversation
        for conversation in reversed(conversations)
        if _same_system(conversation.system, system)
    ]
    # A recorder may leave out calls, so that a result follows the last message directly.
    for conversation in alike:
        if not open_calls(conversation.items):
            continue
        without = [key for key in conversation.keys if key[0] != "call"]
        if keys[: len(without)] == without and [key[0] for key in keys[len(without) :]][:1] == [
            "output"
        ]:
            new = _after(request_items, len(without))
            if new[0].name == MISSING_MESSAGE:  # it is the message with the open calls
                new = new[1:]
            _go_on(conversation, call, system, new, answered)
            return
    for conversation in alike:
        same = len(commonprefix([conversation.keys, keys]))  # noqa: RUF071  of keys, not of paths
        if same and same == len(keys) and conversation.keys[same : same + len(answer)] == answer:
            # two instrumentations recorded the same call
            conversation.skipped["repeated_span"] += 1
            return
        if same and conversation.answer_at <= same < len(conversation.keys):
            conversation.skipped["superseded_item"] += len(conversation.keys) - same
            _cut(conversation, same)
            _go_on(conversation, call, system, _after(request_items, same), answered)
            return
    earlier = _next_part(conversations, call, system, request_items, repeating)
    if earlier is not None:
        earlier.is_stored |= _is_part(request_items)
        _go_on(earlier, call, system, request_items, answered)
        return
    branch = Conversation(is_stored=_is_part(request_items))
    request_items = _without_copies(conversations, branch, request_items)
    conversations.append(branch)
    _go_on(branch, call, system, request_items, answered)


def _without_copies(
    conversations: Iterable[Conversation], branch: Conversation, request_items: Items
) -> Items:
    """Mark the answers that a branch copied from other conversations as not trained.

    They are trained after what their own calls saw. In the branch, a summary may stand in the place
    of the messages before, or a note in the place of a result.
    """
    if not _repeats_an_answer(request_items):
        return request_items
    answers = {
        key
        for conversation in conversations
        for answer in conversation.model_answers
        for key in conversation.keys[answer.start : answer.end]
    }
    items = []
    for item in request_items:
        if key_of(item) in answers:
            branch.skipped["copied_answer"] += 1
            item = untrained(item)
        items.append(item)
    return items


def _go_on(
    conversation: Conversation, call: Span, system: Items, new: Items, answered: Items
) -> None:
    """Extend a conversation by the new items of a model call and by the call's answer."""
    if not conversation.system:
        conversation.system = system
    add(conversation, new)
    conversation.answer_at = len(conversation.keys)
    add(conversation, answered)
    if answered:
        conversation.model_answers.append(
            ModelAnswer(call, conversation.answer_at, len(conversation.keys), system)
        )
    conversation.calls.append(call)


def _next_part(
    conversations: list[Conversation],
    call: Span,
    system: Items,
    request_items: Items,
    repeating: Set[Agent],
) -> Conversation | None:
    """Return the conversation that a call continues although the call repeats none of its items.

    This happens if the service stores the conversation and receives only the new messages. A result
    continues the conversation with its call. Other messages continue a conversation with the same
    system prompt, because a title or a summary is often written without it. If a result came alone
    before, the service stores the conversation: the messages then need no system prompt, or one
    with another date or time.
    """
    if request_items and request_items[0].kind == "function_call_output":
        waiting = [
            (conversation, {item.call_id for item in open_calls(conversation.items)})
            for conversation in reversed(conversations)
        ]
        result_id = request_items[0].call_id
        named = [conversation for conversation, ids in waiting if result_id and result_id in ids]
        named.sort(key=lambda conversation: not _same_system(conversation.system, system))
        if named:
            return named[0]
        if _repeats_an_answer(request_items):
            return None
        return next(
            (
                conversation
                for conversation, ids in waiting
                if ids and _agent_of(conversation.system) not in repeating
            ),
            None,
        )
    if _repeats_an_answer(request_items):
        return None
    is_repeating = bool(repeating) and _agent_of(system) in repeating
    for conversation in reversed(conversations):
        if conversation.calls[-1].trace == call.trace:
            continue
        if conversation.is_stored:
            is_same_agent = not system or _same_without_clock(conversation.system, system)
        else:
            is_same_agent = (
                not is_repeating
                and not conversation.is_repeated
                and list(map(key_of, conversation.system)) == list(map(key_of, system))
            )
        if is_same_agent:
            return conversation
    return None


def _is_part(request_items: Items) -> bool:
    """Return whether a request begins with a result, whose call only the service knows."""
    is_result = bool(request_items) and request_items[0].kind == "function_call_output"
    return is_result and not _repeats_an_answer(request_items)


def _continued(earlier: list[object], request_keys: list[object]) -> int:
    """Return how many items of a request repeat a conversation.

    The number is 0 if the request does not continue the conversation.

    The items must have the conversation's order, and the last of them must be the conversation's
    last item.
    """
    for count in range(len(request_keys), 0, -1):
        if earlier and request_keys[count - 1] == earlier[-1]:
            remaining = iter(earlier)
            if all(
                any(key == earlier_key for earlier_key in remaining) for key in request_keys[:count]
            ):
                return count
    return 0


def _after(items: Items, count: int) -> Items:
    """Return the items that come after the first `count` items that have a comparison key.

    Items without a key are not counted.
    """
    for index, item in enumerate(items):
        if count == 0:
            return items[index:]
        count -= key_of(item) is not None
    return []


def _cut(conversation: Conversation, count: int) -> None:
    behind = _after(conversation.items, count)
    del conversation.items[len(conversation.items) - len(behind) :]
    del conversation.keys[count:]
    conversation.model_answers = [
        replace(answer, end=min(answer.end, count))
        for answer in conversation.model_answers
        if answer.start < count
    ]


def _same_system(left: Items, right: Items) -> bool:
    return not left or not right or list(map(key_of, left)) == list(map(key_of, right))


def _same_without_clock(left: Items, right: Items) -> bool:
    """Return whether two system prompts are equal apart from dates and times."""
    return _without_clock(left) == _without_clock(right)


def _without_clock(system: Items) -> tuple[str, ...]:
    return tuple(mask_clock(item.text) for item in system)


def _without_model_text(spans: list[Span], tools: list[Span]) -> Conversation:
    """Return the conversation of a session in which no model call records its text.

    The conversation consists of the input and output of each run's root span, with the tool calls
    between them.
    """
    conversation = Conversation()
    runs: dict[str, list[Span]] = {}
    for span in in_order(spans):
        runs.setdefault(span.trace, []).append(span)
    for run in runs.values():
        ids = {span.id for span in run}
        roots = [
            span
            for span in run
            if span.kind != "tool" and (span.parent is None or span.parent not in ids)
        ]
        root = next((span for span in roots if span.prompt or span.answered), None)
        single = conversations_of([root])[0] if root else Conversation()
        behind = len(single.keys) - single.answer_at
        answer = single.items[len(single.items) - behind :] if behind else []
        conversation.system = conversation.system or single.system
        add(conversation, single.items[: len(single.items) - len(answer)])
        for tool in run:
            if any(tool is other for other in tools):
                add(conversation, tool_items(tool))
        add(conversation, answer)
    models = sum(span.kind == "model" for span in spans)
    if models or not any(item.kind == "message" for item in conversation.items):
        conversation.skipped["model_call_without_text"] = models or 1
    if models and conversation.items:  # the messages between the model's calls are missing
        conversation.damage["cut_text"] += 1
    return conversation


def _calls(spans: list[Span]) -> list[Span]:
    """Return the steps of a session that are model calls.

    If two instrumentations recorded the same call, one call lies within the other. The call whose
    input cannot be read is then left out.
    """
    calls = [
        _with_unread(span)
        for span in spans
        if span.kind == "model" and (span.prompt or span.answered)
    ]
    steps = {(span.trace, span.id): span for span in [*spans, *calls]}
    outer = {
        id(call): [
            outer_step for outer_step in steps_around(call, steps) if outer_step.kind == "model"
        ]
        for call in calls
    }
    readable = {id(call) for call in calls if call.prompt and _can_be_read(call)}
    shadowed = {
        id(outer_step) for call in calls if id(call) in readable for outer_step in outer[id(call)]
    }
    shadowed |= {
        id(call)
        for call in calls
        if any(id(outer_step) in readable for outer_step in outer[id(call)])
    }
    return [call for call in calls if id(call) in readable or id(call) not in shadowed]


def _can_be_read(call: Span) -> bool:
    """Return whether all messages of a request can be read, except for missing messages."""
    return not any(
        is_damaged(message) and getattr(message, "name", "") != MISSING_MESSAGE
        for message in call.prompt
    )


def _with_unread(span: Span) -> Span:
    """Return a model call, with damage items if its request or response contains no messages.

    An answer of a failed call that states no reason for its end was cut off.

    A step without any message is left out, because frameworks also label other steps as model calls
    (such as llama-index's preparation of a call). If the step really was a call, the input of the
    next call contains its messages.
    """
    prompt = span.prompt or ([mark_unread("request")] if span.has_unread_request else [])
    answered = span.answered or ([mark_unread("response")] if span.has_unread_response else [])
    if span.error:  # the user stopped the stream, or it broke: the answer is only its beginning
        answered = with_reason(answered, "error")
    return replace(span, prompt=prompt, answered=answered)


def _system_around(conversation: Conversation, spans: list[Span]) -> Items:
    """Return the system prompt of the nearest outer step that has one.

    Some agents record the prompt once, and not with each call.
    """
    around = steps_around(conversation.calls[0], {(span.trace, span.id): span for span in spans})
    return next(
        (system for step in around if (system := split_head(list(read_items(step.prompt)))[0])), []
    )
