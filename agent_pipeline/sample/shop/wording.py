"""The phrases of shop users, their names and their products. Each meaning has many forms.

`TRAINED` has the phrases of the sample. `OTHER` has the phrases of the variant `other_words`, which
no session of the sample uses.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from agent_pipeline.sample.names import FIRST, LAST, OTHER_FIRST, OTHER_LAST
from agent_pipeline.sample.shop.agent import Intent


@dataclass(frozen=True)
class Words:
    """The phrases, names and products of a group of simulated users.

    In phrases, `{what}` is the thing that the user asks about, `{thing}` is an item, `{id}` is an
    order id, `{name}` is a full name, and `{ask}` is a request.

    Attributes:
        asks: Requests, by intent.
        by_id: Phrases for an item in an order.
        whole: Phrases for an order.
        by_name: Sentences that give the user's name after a request.
        give_id: Answers to the question for the order id.
        give_name: Answers to the question for the name.
        correct: Sentences that correct a wrong order id.
        choose: Answers to the question which order is meant.
        instead: Requests after a refused request, by intent.
        next_request: Sentences around a later request.
        items: Products, in the singular. All plurals are regular.
        first_names: First names of users.
        last_names: Last names of users.
    """

    asks: dict[Intent, tuple[str, ...]]
    by_id: tuple[str, ...]
    whole: tuple[str, ...]
    by_name: tuple[str, ...]
    give_id: tuple[str, ...]
    give_name: tuple[str, ...]
    correct: tuple[str, ...]
    choose: tuple[str, ...]
    instead: dict[Intent, tuple[str, ...]]
    next_request: tuple[str, ...]
    items: Sequence[str]
    first_names: Sequence[str]
    last_names: Sequence[str]


TRAINED = Words(
    asks={
        "refund": (
            "I'd like my money back for {what}.",
            "Could you refund {what}?",
            "Please refund {what}.",
            "I need a refund for {what}.",
            "I want to return {what} and get my money back.",
            "Can I have a refund for {what}?",
            "I'd like a refund on {what}, please.",
            "Refund {what}, please.",
            "I sent back {what}. Please refund me.",
            "How do I get my money back for {what}? Please do it.",
            "There is something wrong with {what}. I want my money back.",
            "I returned {what} and would like the money.",
            "Please pay me back for {what}.",
        ),
        "cancel": (
            "Please cancel {what}.",
            "Can you cancel {what}?",
            "I want to cancel {what}.",
            "I need to cancel {what}.",
            "Cancel {what}, please.",
            "Could you please cancel {what} for me?",
            "I found a better price, so cancel {what}.",
            "I ordered by mistake. Please cancel {what}.",
            "Is it possible to cancel {what}? If so, please do.",
            "Stop {what}, cancel it.",
            "Don't send {what}, please cancel.",
            "I'd like to call off {what}.",
        ),
        "unwanted": (
            "I no longer want {what}.",
            "I don't need {what} any more.",
            "I changed my mind about {what}.",
            "I don't want {what} after all.",
            "I have no use for {what} now.",
            "I'd rather not have {what} after all.",
            "I don't care for {what} any longer.",
        ),
    },
    by_id=(
        "{thing} in order {id}",
        "{thing} from order {id}",
        "{thing} (order {id})",
        "{thing}, order {id}",
    ),
    whole=("order {id}", "my order {id}", "the order {id}", "order number {id}"),
    by_name=(
        " My name is {name}.",
        " I'm {name}.",
        " It's under {name}.",
        " The name is {name}.",
        " {name} here.",
        " Name: {name}.",
        " I ordered as {name}.",
    ),
    give_id=("It's {id}.", "{id}", "The id is {id}.", "Order {id}.", "Here it is: {id}"),
    give_name=("I'm {name}.", "{name}", "My name is {name}.", "It's under {name}."),
    correct=(
        "Sorry, it is {id}.",
        "My mistake: {id}.",
        "Oh, I meant {id}.",
        "I misread it. It's {id}.",
        "Then try {id}.",
    ),
    choose=(
        "The {thing}.",
        "The {thing}, please.",
        "I mean the {thing}.",
        "It's about the {thing}.",
        "{thing}",
    ),
    instead={
        "refund": (
            "Then refund {what} instead.",
            "OK. And a refund for {what}?",
            "What about my money back for {what}?",
        ),
        "cancel": (
            "Then cancel {what} instead.",
            "OK. Please cancel {what}, then.",
            "And can you cancel {what}?",
        ),
        "unwanted": (
            "I don't want {what} either.",
            "OK. I no longer want {what} either.",
            "And I don't need {what} any more.",
        ),
    },
    next_request=(
        "{ask}",
        "One more thing. {ask}",
        "Thanks. {ask}",
        "OK, next: {ask}",
        "I have another request. {ask}",
        "Good. Something else: {ask}",
    ),
    items=(
        "kettle", "lamp", "mug", "chair", "desk", "clock", "rug", "towel", "pillow", "basket",
        "mirror", "plate", "bowl", "tent", "backpack", "jacket", "shirt", "scarf", "helmet",
        "radio", "camera", "suitcase", "keyboard", "toaster",
    ),
    first_names=FIRST,
    last_names=LAST,
)  # fmt: skip

OTHER = Words(
    asks={
        "refund": (
            "Would you return the money for {what}?",
            "I expect a refund for {what}.",
            "Kindly reimburse me for {what}.",
            "My money back for {what}, please!",
            "I was told I could get a refund for {what}.",
            "Please arrange a refund of {what}.",
        ),
        "cancel": (
            "Kindly cancel {what}.",
            "Would you cancel {what} before it leaves?",
            "A cancellation of {what}, please.",
            "I must ask you to cancel {what}.",
            "Please make sure that {what} is cancelled.",
            "We decided to cancel {what}.",
        ),
        "unwanted": (
            "{what}? I don't want it any more.",
            "It turns out that I don't need {what}.",
            "I have decided against {what}.",
            "I lost interest in {what}.",
        ),
    },
    by_id=("{thing} of order {id}", "{thing} - order {id}", "{thing} that came with order {id}"),
    whole=("the order with the id {id}", "order no. {id}", "purchase {id}"),
    by_name=(
        " You have me as {name}.",
        " The order was placed by {name}.",
        " Regards, {name}.",
        " {name} is my name.",
    ),
    give_id=("I think it's {id}.", "Found it: {id}.", "The number says {id}."),
    give_name=("Look under {name}.", "You should have me as {name}.", "{name} is my name."),
    correct=("Wait, {id} is the right one.", "Typo, I meant {id}.", "It should be {id}."),
    choose=("I'd say the {thing}.", "{thing}, please.", "The one with the {thing}."),
    instead={
        "refund": ("Then at least refund {what}.", "Could I get a refund for {what} then?"),
        "cancel": ("Then at least cancel {what}.", "Could you cancel {what} then?"),
        "unwanted": ("Well, I don't need {what} either.", "Then I don't want {what} either."),
    },
    next_request=("Great. Now this: {ask}", "While we are at it: {ask}", "Second question. {ask}"),
    items=(
        "blender", "candle", "drill", "easel", "fan", "guitar", "hammer", "iron", "jug", "ladder",
        "map", "notebook", "oven", "printer", "quilt", "razor", "sofa", "teapot", "umbrella",
        "vase",
    ),
    first_names=OTHER_FIRST,
    last_names=OTHER_LAST,
)  # fmt: skip

NUMBERS = ("no", "one", "two", "three", "four", "five")


def things(item: str, units: int) -> str:
    """Return an item's name in the singular or plural, such as `mugs` for 3 units.

    All plurals in the sample are regular.
    """
    return item if units == 1 else f"{item}s"


def part(item: str, wanted: int, units: int, rng: Random) -> str:
    """Return a phrase such as `one of the three mugs`, with numbers in words or digits.

    Args:
        item: The item in the singular.
        wanted: The number of units that the user means.
        units: The number of units in the order.
        rng: The random stream.
    """
    say = rng.choice((lambda n: NUMBERS[n], str))
    return f"{say(wanted)} of the {say(units)} {item}s"


def written_id(order_id: str, untidy: float, rng: Random) -> str:
    """Return an order id as a user writes it.

    With probability `untidy`, it is not in the canonical form (`k-482` instead of `K482`).
    """
    if rng.random() >= untidy:
        return order_id
    letter, digits = order_id[0], order_id[1:]
    small = letter.lower()
    return rng.choice(
        (
            f"{small}{digits}",
            f"{letter}-{digits}",
            f"#{order_id}",
            f"{letter} {digits}",
            f"{small}-{digits}",
        )
    )


def first_upper(text: str) -> str:
    """Return the text with a capital first letter, like the beginning of a sentence."""
    return text[:1].upper() + text[1:]
