"""Turns that are hard to score, each labelled by hand: what the reply is, whether it is right, and why a careful reader says so.

The labels were written before any scorer saw the cases. `actual` is the reply's class; `right` says how it compares with what was recorded:

- `strict`: the same calls in effect, or an answer that does the job of the recorded one;
- `lenient`: a reader takes it for the same call, but a tool may not (case of a word, a number written as text);
- `wrong`;
- `cut`: the limit on new tokens ended the reply within its call, which is wrong and counted apart.
"""

import json
from typing import Any, NamedTuple


def tool(name: str, required: str = "", **properties: Any) -> dict[str, Any]:
    """An OpenAI schema; `required` names the required properties."""
    parameters = {"type": "object", "properties": properties, "required": required.split()}
    return {
        "type": "function",
        "function": {"name": name, "description": name, "parameters": parameters},
    }


TEXT, WHOLE, NUMBER, FLAG = ({"type": kind} for kind in ("string", "integer", "number", "boolean"))
TOOLS = [
    tool("weather", "city", city=TEXT, days={**WHOLE, "default": 1}, unit={"enum": ["celsius", "fahrenheit"], "default": "celsius"}),
    tool("find_orders", "query", query=TEXT, limit={**WHOLE, "default": 10}),
    tool("refund", "order amount", order=TEXT, amount=NUMBER, reason=TEXT),
    tool("cancel", "order", order=TEXT, notify={**FLAG, "default": True}),
    tool("transfer", "source target amount", source=TEXT, target=TEXT, amount=NUMBER),
    tool("search", "query", query=TEXT, filters={"type": "object", "properties": {"lang": TEXT, "year": WHOLE, "exact": {**FLAG, "default": False}}}),
    tool("tag", "names", names={"type": "array", "items": TEXT}),
    tool("open_door", "code", code=TEXT),
    tool("now"),
]  # fmt: skip


class Case(NamedTuple):
    """`recorded`: what the agent did, calls as (name, arguments) pairs, or its text. `result`: what a tool said just before."""

    name: str
    user: str
    recorded: Any
    reply: str
    actual: str
    right: str
    why: str
    result: str = ""
    cut: bool = False


def hermes(*calls: tuple[str, Any]) -> str:
    """Calls in Hermes' notation."""
    return "\n".join(
        f"<tool_call>\n{json.dumps({'name': name, 'arguments': args}, ensure_ascii=False)}\n</tool_call>"
        for name, args in calls
    )


OSLO = [("weather", {"city": "Oslo", "days": 2})]
TWO = [("weather", {"city": "Oslo", "days": 2}), ("weather", {"city": "Rome", "days": 3})]
ASK = "How is Oslo for 2 days?"
BOTH = "How are Oslo for 2 days and Rome for 3?"
BODY = '{"name": "weather", "arguments": {"city": "Oslo", "days": 2}}'
ROME = '{"name": "weather", "arguments": {"city": "Rome", "days": 3}}'
TICKS = "```"


def written(
    name: str, reply: str, why: str, recorded: Any = OSLO, user: str = ASK, right: str = "strict"
) -> Case:
    """A call in some family's notation."""
    return Case(name, user, recorded, reply, "call", right, why)


NOTATIONS = [
    written("hermes", f"<tool_call>\n{BODY}\n</tool_call>", "the plain form"),
    written("hermes, open end", f"<tool_call>{BODY}", "the closing tag is often the stop"),
    written("hermes, after words", f"Let me see.\n<tool_call>\n{BODY}\n</tool_call>", "words before a call do no harm"),
    written("hermes, after words on the line", f"Let me see. <tool_call>{BODY}</tool_call>", "the same on one line"),
    written("hermes, two", f"<tool_call>\n{BODY}\n</tool_call>\n<tool_call>\n{ROME}\n</tool_call>", "two calls, as recorded", TWO, BOTH),
    written("hermes, a list in one tag", f"<tool_call>[{BODY}, {ROME}]</tool_call>", "both calls are there", TWO, BOTH),
    written(
        "qwen coder's XML",
        "<tool_call>\n<function=weather>\n<parameter=city>\nOslo\n</parameter>\n<parameter=days>\n2\n</parameter>\n</function>\n</tool_call>",
        "values are text; the schema says that days is a number",
    ),
    written(
        "XML keeps digits as text",
        "<tool_call>\n<function=open_door>\n<parameter=code>\n0042\n</parameter>\n</function>\n</tool_call>",
        "the schema says that the code is text",
        [("open_door", {"code": "0042"})],
        "The code is 0042.",
    ),
    written("mistral's list", f"[TOOL_CALLS][{BODY}]", "Mistral up to v7"),
    written("mistral by name", '[TOOL_CALLS]weather[ARGS]{"city": "Oslo", "days": 2}', "Mistral from v11"),
    written(
        "mistral by name, two",
        '[TOOL_CALLS]weather[ARGS]{"city": "Oslo", "days": 2}[TOOL_CALLS]weather[ARGS]{"city": "Rome", "days": 3}',
        "each call has its mark",
        TWO,
        BOTH,
    ),
    written("llama's tag", '<|python_tag|>{"name": "weather", "parameters": {"city": "Oslo", "days": 2}}', "Llama says parameters"),
    written("llama, bare", '{"name": "weather", "parameters": {"city": "Oslo", "days": 2}}', "a bare object that names a tool of the row"),
    written("llama, two with a semicolon", f"{BODY}; {ROME}", "Llama 3.x parts parallel calls by a semicolon", TWO, BOTH),
    written("a bare list", f"[{BODY}, {ROME}]", "xLAM's notation", TWO, BOTH),
    written("phi 4", f"<|tool_call|>[{BODY}]<|/tool_call|>", "Phi-4-mini's marks"),
    written("phi 4's functools", f"functools[{BODY}]", "what Phi-4-mini writes without its marks"),
    written("python, one", '[weather(city="Oslo", days=2)]', "Llama 3.2's and xLAM's Python-like list"),
    written("python, two", "[weather(city='Oslo', days=2), weather(city='Rome', days=3)]", "two in one list", TWO, BOTH),
    written("python, marked", '<|python_start|>[weather(city="Oslo", days=2)]<|python_end|>', "Llama 4's marks"),
    written("gemma's block", f"{TICKS}tool_code\nprint(weather(city='Oslo', days=2))\n{TICKS}", "Gemma writes Python in a block"),
    written(
        "harmony",
        '<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{"city": "Oslo", "days": 2}<|call|>',
        "gpt-oss calls on its commentary channel",
    ),
    written(
        "harmony after an analysis",
        "<|channel|>analysis<|message|>The user wants the weather.<|end|><|start|>assistant<|channel|>commentary to=functions.weather "
        '<|constrain|>json<|message|>{"city":"Oslo","days":2}<|call|>',
        "the analysis is thought, the commentary calls",
    ),
    written(
        "harmony, recipient first",
        '<|start|>assistant to=functions.weather<|channel|>commentary json<|message|>{"city": "Oslo", "days": 2}<|call|>',
        "the recipient may stand in the role",
    ),
    written(
        "deepseek v3",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n"
        f'{TICKS}json\n{{"city": "Oslo", "days": 2}}\n{TICKS}<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
        "V3 and R1: the type, the name, a block",
    ),
    written(
        "deepseek v3, two",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n"
        f'{TICKS}json\n{{"city": "Oslo", "days": 2}}\n{TICKS}<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n'
        f'{TICKS}json\n{{"city": "Rome", "days": 3}}\n{TICKS}<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
        "each call has its own marks",
        TWO,
        BOTH,
    ),
    written(
        "deepseek v3.1",
        '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>{"city": "Oslo", "days": 2}<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
        "V3.1: the name, then JSON",
    ),
    written(
        "glm",
        "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Oslo</arg_value>\n"
        "<arg_key>days</arg_key>\n<arg_value>2</arg_value>\n</tool_call>",
        "GLM 4.5 writes keys and values",
    ),
    written(
        "glm keeps digits as text",
        "<tool_call>open_door\n<arg_key>code</arg_key>\n<arg_value>42</arg_value>\n</tool_call>",
        "the schema says that the code is text",
        [("open_door", {"code": "42"})],
        "The code is 42.",
    ),
    written(
        "the API's own form",
        '{"type": "function", "function": {"name": "weather", "arguments": "{\\"city\\": \\"Oslo\\", \\"days\\": 2}"}}',
        "arguments as a string of JSON, as the API has them",
    ),
    written("a block and nothing else", f"{TICKS}json\n{BODY}\n{TICKS}", "the whole message is a call that names a tool"),
    written("no arguments", '<tool_call>\n{"name": "now"}\n</tool_call>', "none is due", [("now", {})], "What time is it?"),
    written("null arguments", '<tool_call>{"name": "now", "arguments": null}</tool_call>', "null is none", [("now", {})], "What time is it?"),
    written("a comma too many", '<tool_call>{"name": "weather", "arguments": {"city": "Oslo", "days": 2},}</tool_call>', "no JSON: no server runs it", right="wrong"),
    written("Python's quotes", "<tool_call>{'name': 'weather', 'arguments': {'city': 'Oslo', 'days': 2}}</tool_call>", "no JSON: no server runs it", right="wrong"),
    written("a list as arguments", '<tool_call>{"name": "weather", "arguments": ["Oslo", 2]}</tool_call>', "arguments are an object", right="wrong"),
    written("a function written out in the tag", "<tool_call>\nweather(Oslo)\n</tool_call>", "meant as a call, but none", right="wrong"),
]  # fmt: skip

THOUGHT = "<think>\nI could write <tool_call>" + BODY + "</tool_call> here.\n</think>\n\n"
SUN = "It is sunny in Oslo."
NO_CALLS = [
    Case("a call in a thought, then an answer", "Thanks, how is it?", SUN, THOUGHT + SUN, "answer", "strict", "a thought calls nothing", '{"sun": true, "city": "Oslo"}'),
    Case("a call in a thought, then a call", ASK, OSLO, THOUGHT + hermes(*OSLO), "call", "strict", "what follows the thought counts"),
    Case("a thought that never ends", ASK, OSLO, THOUGHT.replace("</think>", ""), "answer", "wrong", "nothing was said: neither call nor answer"),
    Case("a thought that the prompt began", ASK, OSLO, f"So I call {BODY}.\n</think>\n{hermes(*OSLO)}", "call", "strict", "all before </think> is thought"),
    Case("another call in the thought", ASK, OSLO, f"<think>{hermes(('now', {}))}</think>{hermes(*OSLO)}", "call", "strict", "one call, not two"),
    Case("mistral's thought", ASK, OSLO, f"[THINK]maybe {ROME}[/THINK][TOOL_CALLS][{BODY}]", "call", "strict", "Magistral marks thoughts so"),
    Case("the tag in quotes", "Which tag do you use?", "I use the <tool_call> tag.", "I write `<tool_call>` before a call.", "answer", "strict", "the tag is talked about"),
    Case("the tag in a sentence", "Which tag do you use?", "I use the <tool_call> tag.", "It is the <tool_call> tag, as in Hermes.", "answer", "strict", "no call follows it"),
    Case("JSON as an example", "Show me a call.", "Here is one.", f"A call looks so:\n{TICKS}json\n{BODY}\n{TICKS}\nThat is all.", "answer", "strict", "an example in a text, not a call"),
    Case("a tag in an example", "Show me a call.", "Here is one.", f"It looks so:\n{TICKS}\n<tool_call>\n{BODY}\n</tool_call>\n{TICKS}\nThat is all.", "answer", "strict", "quoted in a block"),
    Case("data as JSON", "Give me the user as JSON.", '{"city": "Oslo", "days": 2}', '{"city": "Oslo", "days": 2}', "answer", "strict", "no name, no call"),
    Case("a person as JSON", "Give me the user as JSON.", '{"name": "Anna", "arguments": {"age": 7}}', '{"name": "Anna", "arguments": {"age": 7}}', "answer", "strict", "Anna is no tool"),
    Case("people as a list", "Give me the users as JSON.", '[{"name": "Anna"}, {"name": "Ben"}]', '[{"name": "Anna"}, {"name": "Ben"}]', "answer", "strict", "no tool has these names"),
    Case("a function in a sentence", "How do I call it in Python?", "Use weather(city).", "You call weather(city) from your code.", "answer", "strict", "talked about"),
    Case("a list of numbers", "Which days?", "[1, 2]", "[1, 2]", "answer", "strict", "a list that calls nothing"),
    Case("a call of no tool, Python", "Which shapes?", "[circle(r=1)]", "[circle(r=1)]", "answer", "strict", "circle is no tool of the row"),
    Case("a link", "Where do I read that?", "[Oslo](https://example.com/oslo)", "See [Oslo](https://example.com/oslo).", "answer", "strict", "Markdown"),
    Case("harmony's answer", "How is it?", SUN, f"<|channel|>final<|message|>{SUN}<|return|>", "answer", "strict", "the final channel answers", '{"sun": true, "city": "Oslo"}'),
    Case("harmony thinks of a call", "How is it?", SUN, f"<|channel|>analysis<|message|>I could call functions.weather.<|end|><|start|>assistant<|channel|>final<|message|>{SUN}<|return|>", "answer", "strict", "the analysis calls nothing", '{"sun": true, "city": "Oslo"}'),
    Case("a promise to call", ASK, OSLO, "I will look up the weather in Oslo for you.", "answer", "wrong", "nothing was called"),
    Case("silence", "How is it?", SUN, "", "answer", "wrong", "nothing was said", '{"sun": true}'),
    Case("a call where an answer was due", "How is it?", SUN, hermes(*OSLO), "call", "wrong", "over-call", '{"sun": true, "city": "Oslo"}'),
    Case("a broken call where an answer was due", "How is it?", SUN, "<tool_call>\n{broken", "call", "wrong", "it meant to call", '{"sun": true}'),
]  # fmt: skip


def called(name: str, user: str, recorded: list, reply: list, right: str, why: str) -> Case:
    """A call that was read well, and has to be compared."""
    return Case(name, user, recorded, hermes(*reply), "call", right, why)


REFUND = [("refund", {"order": "K100", "amount": 30.0})]
PAY = "Refund K100, 30 dollars."
CANCEL = [("cancel", {"order": "K100"})]
COMPARED = [
    called("a default left out", "Oslo, 1 day", [("weather", {"city": "Oslo", "days": 1})], [("weather", {"city": "Oslo"})], "strict", "the tool fills in 1"),
    called("a default written out", "Oslo?", [("weather", {"city": "Oslo"})], [("weather", {"city": "Oslo", "days": 1, "unit": "celsius"})], "strict", "both are the defaults"),
    called("not the default", "Oslo?", [("weather", {"city": "Oslo"})], [("weather", {"city": "Oslo", "days": 5})], "wrong", "five days were not asked for"),
    called("a flag's default", "Cancel K100", CANCEL, [("cancel", {"order": "K100", "notify": True})], "strict", "true is the default"),
    called("against a flag's default", "Cancel K100", CANCEL, [("cancel", {"order": "K100", "notify": False})], "wrong", "nobody would be told"),
    called("a default within an object", "Search", [("search", {"query": "fjord", "filters": {"year": 2020}})], [("search", {"query": "fjord", "filters": {"exact": False, "year": 2020}})], "strict", "false is the default"),
    called("keys in another order", PAY, REFUND, [("refund", {"amount": 30, "order": "K100"})], "strict", "an object has no order"),
    called("a whole number for a float", PAY, REFUND, [("refund", {"order": "K100", "amount": 30})], "strict", "30 is 30.0"),
    called("a float for a whole number", ASK, OSLO, [("weather", {"city": "Oslo", "days": 2.0})], "strict", "2.0 is 2"),
    called("another amount", PAY, REFUND, [("refund", {"order": "K100", "amount": 30.5})], "wrong", "half a dollar more"),
    called("a number as text", ASK, OSLO, [("weather", {"city": "Oslo", "days": "2"})], "lenient", "the schema wants a number, a strict tool refuses text"),
    called("text as a number", "The code is 42", [("open_door", {"code": "42"})], [("open_door", {"code": 42})], "lenient", "the schema wants text"),
    called("text that only looks equal as a number", "The code is 042", [("open_door", {"code": "042"})], [("open_door", {"code": 42})], "wrong", "the zero opens the door"),
    called("a flag as text", "Cancel K100 quietly", [("cancel", {"order": "K100", "notify": False})], [("cancel", {"order": "K100", "notify": "false"})], "lenient", "meant as false"),
    called("a flag as a number", "Cancel K100", [("cancel", {"order": "K100", "notify": False})], [("cancel", {"order": "K100", "notify": 0})], "wrong", "a number is no flag"),
    called("an enum's case", "Oslo in Fahrenheit", [("weather", {"city": "Oslo", "unit": "fahrenheit"})], [("weather", {"city": "Oslo", "unit": "Fahrenheit"})], "lenient", "one of the two units, badly written"),
    called("another member of an enum", "Oslo in Fahrenheit", [("weather", {"city": "Oslo", "unit": "fahrenheit"})], [("weather", {"city": "Oslo", "unit": "celsius"})], "wrong", "the other unit"),
    called("a word's case", "how is oslo", [("weather", {"city": "Oslo"})], [("weather", {"city": "oslo"})], "lenient", "the same city"),
    called("an id's case", PAY, REFUND, [("refund", {"order": "k100", "amount": 30})], "wrong", "ids are read to the letter"),
    called("a full stop in an id", PAY, REFUND, [("refund", {"order": "K100.", "amount": 30})], "wrong", "there is no such order"),
    called("another id", PAY, REFUND, [("refund", {"order": "K101", "amount": 30})], "wrong", "another order"),
    called("a blank too many", "Find Anna Berg", [("find_orders", {"query": "Anna Berg"})], [("find_orders", {"query": " Anna  Berg"})], "lenient", "the same name"),
    called("another name", "Find Anna Berg", [("find_orders", {"query": "Anna Berg"})], [("find_orders", {"query": "Anna Burg"})], "wrong", "another person"),
    called("another tool", "Cancel K100", CANCEL, [("refund", {"order": "K100", "amount": 0})], "wrong", "another deed"),
    called("a tool that is not there", "Cancel K100", CANCEL, [("cancel_order", {"order": "K100"})], "wrong", "no such tool"),
    called("a tool's name in capitals", "Cancel K100", CANCEL, [("Cancel", {"order": "K100"})], "wrong", "names of tools are read to the letter"),
    called("an unknown parameter", "Cancel K100", CANCEL, [("cancel", {"order": "K100", "why": "late"})], "wrong", "the tool has no such parameter"),
    called("a parameter missing", PAY, REFUND, [("refund", {"order": "K100"})], "wrong", "the amount is required"),
    called("an optional parameter missing", PAY, [("refund", {"order": "K100", "amount": 30, "reason": "broken"})], [("refund", {"order": "K100", "amount": 30})], "wrong", "the reason is lost, and it has no default"),
    called("null for an optional one", PAY, REFUND, [("refund", {"order": "K100", "amount": 30, "reason": None})], "strict", "null is not given"),
    called("null for one with a default", "Oslo?", [("weather", {"city": "Oslo"})], [("weather", {"city": "Oslo", "days": None})], "strict", "null is not given, so 1"),
    called("null for a required one", PAY, REFUND, [("refund", {"order": "K100", "amount": None})], "wrong", "the amount is required"),
    called("escaped letters", "Zürich", [("weather", {"city": "Zürich"})], [("weather", {"city": "Zu\u0308rich"})], "lenient", "the same letters, composed otherwise"),
    called("a list in another order", "Tag it red, blue", [("tag", {"names": ["red", "blue"]})], [("tag", {"names": ["blue", "red"]})], "wrong", "a list has an order"),
    called("parallel calls in another order", BOTH, TWO, TWO[::-1], "strict", "neither has seen the other's result"),
    called("one of two calls", BOTH, TWO, TWO[:1], "wrong", "Rome is missing"),
    called("a call too many", ASK, OSLO, TWO, "wrong", "nobody asked for Rome"),
    called("the same call twice", "Refund K100", REFUND, REFUND * 2, "wrong", "paid twice"),
    called("dependent calls in another order", "Move 5 from A1 to B2, then 5 from B2 to C3", [("transfer", {"source": "A1", "target": "B2", "amount": 5}), ("transfer", {"source": "B2", "target": "C3", "amount": 5})], [("transfer", {"source": "B2", "target": "C3", "amount": 5}), ("transfer", {"source": "A1", "target": "B2", "amount": 5})], "wrong", "B2 has nothing yet to give"),
    called("parallel reads of one thing in another order", "K100 and its owner", [("find_orders", {"query": "K100"}), ("search", {"query": "K100"})], [("search", {"query": "K100"}), ("find_orders", {"query": "K100"})], "strict", "both only look"),
    called("a call right, one broken", "Oslo and Rome", OSLO, [*OSLO, ("weather", ["Rome"])], "wrong", "a call too many, and broken"),
]  # fmt: skip

LATE = "I can't refund K100: the 30 days are over."
DELIVERED = '{"order": "K100", "status": "delivered", "days": 45, "price": 20}'
DONE = "I have refunded 20 dollars for K100."
WHICH = "What is the order id, or your name?"
LOST = "I want my money back."
MEANT = [
    Case("the same question, other words", LOST, WHICH, "Could you give me the order id or your name, please?", "ask", "strict", "asks for the same"),
    Case("a request without a question mark", LOST, WHICH, "Please tell me your order id.", "ask", "strict", "asks for what is missing"),
    Case("what I need", LOST, WHICH, "To do that I'll need your order number.", "ask", "strict", "asks for what is missing"),
    Case("an answer where a question was due", LOST, WHICH, "Your money is on its way.", "answer", "wrong", "the order is not known yet"),
    Case("a refusal where a question was due", LOST, WHICH, "Sorry, I can't refund that.", "cannot", "wrong", "nothing speaks against it yet"),
    Case("a call where a question was due", LOST, WHICH, hermes(("find_orders", {"query": "unknown"})), "call", "wrong", "made-up argument"),
    Case("a question where a call was due", PAY, REFUND, "What is the order id?", "ask", "wrong", "it was said"),
    Case("a refusal where a call was due", PAY, REFUND, "I'm sorry, I can't do that.", "cannot", "wrong", "nothing speaks against it"),
    Case("the same refusal, other words", PAY, LATE, "Sorry, K100 was delivered more than 30 days ago.", "cannot", "strict", "refuses by the same rule", DELIVERED),
    Case("a refusal that explains", PAY, LATE, "Unfortunately, K100 is past the 30 days, so no refund is possible.", "cannot", "strict", "refuses by the same rule", DELIVERED),
    Case("a refusal by negation", PAY, LATE, "Order K100 is not eligible for a refund.", "cannot", "strict", "refuses", DELIVERED),
    Case("a refusal with an offer", PAY, LATE, "I can't refund K100. Would you like a voucher instead?", "cannot", "strict", "the offer comes after the refusal", DELIVERED),
    Case("a refusal with a courtesy", PAY, LATE, "I cannot refund K100, the 30 days are over. Is there anything else I can help with?", "cannot", "strict", "the question is a courtesy", DELIVERED),
    Case("a refusal with an invented reason", PAY, LATE, "I can't refund K100: it was delivered 77 days ago.", "cannot", "wrong", "77 is from nowhere", DELIVERED),
    Case("a refusal about another order", PAY, LATE, "I can't refund K999: the 30 days are over.", "cannot", "wrong", "K999 is nobody's order", DELIVERED),
    Case("a deed claimed where a refusal was due", PAY, LATE, DONE, "answer", "wrong", "nothing was refunded", DELIVERED),
    Case("a refusal where the deed was done", PAY, DONE, LATE, "cannot", "wrong", "it was refunded", '{"ok": true, "refunded": 20}'),
    Case("an unknown id", "Refund K7", "I can't find K7. Could you check the id?", "There is no order K7. Please check the id.", "ask", "strict", "asks for the right id", "[]"),
    Case("an unknown id, asked shortly", "Refund K7", "I can't find K7. Could you check the id?", "Which id is it? I see no order K7.", "ask", "strict", "asks for the right id", "[]"),
    Case("two candidates", "Refund the mug", "Which one, the red or the blue?", "I see a red one and a blue one. Which do you mean?", "ask", "strict", "asks which", '["red mug", "blue mug"]'),
    Case("a confirmation", "Cancel K100", "Shall I cancel K100?", "Do you want me to cancel order K100?", "ask", "strict", "asks before it acts", '{"order": "K100", "status": "open"}'),
    Case("a confirmation skipped", "Cancel K100", "Shall I cancel K100?", hermes(*CANCEL), "call", "wrong", "it should have asked", '{"order": "K100", "status": "open"}'),
    Case("the same answer, other words", PAY, DONE, "Done: 20 dollars refunded for K100.", "answer", "strict", "says the same", '{"ok": true, "refunded": 20}'),
    Case("another way to write a number", PAY, DONE, "You get $20.00 back for K100.", "answer", "strict", "20.00 is 20", '{"ok": true, "refunded": 20}'),
    Case("an answer and a courtesy", PAY, DONE, DONE + " Can I help you with anything else?", "answer", "strict", "the question is a courtesy", '{"ok": true, "refunded": 20}'),
    Case("a sympathetic answer", "Where is it?", "K100 arrives on day 12.", "I'm sorry for the wait. K100 arrives on day 12.", "answer", "strict", "an apology is no refusal", '{"order": "K100", "day": 12}'),
    Case("another amount in an answer", PAY, DONE, "I have refunded 25 dollars for K100.", "answer", "wrong", "it was 20", '{"ok": true, "refunded": 20}'),
    Case("an answer without the value", "When does it arrive?", "K100 arrives on day 12.", "It arrives soon.", "answer", "wrong", "the day was asked for", '{"order": "K100", "day": 12}'),
    Case("a value that nobody gave", "When does it arrive?", "K100 arrives on day 12.", "K100 arrives on day 12, at 17:45.", "answer", "wrong", "no hour was given", '{"order": "K100", "day": 12}'),
    Case("the opposite", "Is K100 open?", "Yes, K100 is open.", "No, K100 is not open.", "answer", "wrong", "it says the opposite", '{"order": "K100", "status": "open"}'),
    Case("another city", "How is it?", SUN, "It is sunny in Bergen.", "answer", "wrong", "another city", '{"sun": true, "city": "Oslo"}'),
    Case("a long answer that was cut", "How is it?", SUN, "It is sunny in Oslo, and there is", "answer", "strict", "what counts was said", '{"sun": true, "city": "Oslo"}', True),
    Case("a cut call", ASK, OSLO, '<tool_call>\n{"name": "weather", "arguments": {"city": "Os', "call", "cut", "it may have become right", "", True),
    Case("a cut second call", BOTH, TWO, hermes(TWO[0]) + '\n<tool_call>\n{"name": "weather", "argu', "call", "cut", "the first is right, the second unknown", "", True),
    Case("a cut call where an answer was due", "How is it?", SUN, '<tool_call>\n{"name": "weather", "arg', "call", "wrong", "calling was wrong already", '{"sun": true}', True),
    Case("a cut call in Python", ASK, OSLO, '[weather(city="Oslo", da', "call", "cut", "it may have become right", "", True),
    Case("a bare call that was cut", ASK, OSLO, '{"name": "weather", "parameters": {"city": "Os', "call", "cut", "it names a tool already", "", True),
    Case("text that was cut where a call was due", ASK, OSLO, "The weather in Oslo is usually", "answer", "wrong", "no call was begun", "", True),
]  # fmt: skip

CASES = [*NOTATIONS, *NO_CALLS, *COMPARED, *MEANT]
