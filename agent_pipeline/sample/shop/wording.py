"""The phrases of shop users. Each meaning has many forms."""

from random import Random

from agent_pipeline.sample.shop.agent import Intent

ASKS: dict[Intent, tuple[str, ...]] = {
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
    ),
    "unwanted": (
        "I no longer want {what}.",
        "I don't need {what} any more.",
        "I changed my mind about {what}.",
        "I don't want {what} after all.",
        "I have no use for {what} now.",
        "I'd rather not have {what} after all.",
    ),
}

BY_ID = (
    "{thing} in order {id}",
    "{thing} from order {id}",
    "{thing} (order {id})",
    "{thing}, order {id}",
)
WHOLE = ("order {id}", "my order {id}", "the order {id}", "order number {id}")
BY_NAME = (
    " My name is {name}.",
    " I'm {name}.",
    " It's under {name}.",
    " The name is {name}.",
    " {name} here.",
    " Name: {name}.",
)
GIVE_ID = ("It's {id}.", "{id}", "The id is {id}.", "Order {id}.", "Here it is: {id}")
GIVE_NAME = ("I'm {name}.", "{name}", "My name is {name}.", "It's under {name}.")
CORRECT = (
    "Sorry, it is {id}.",
    "My mistake: {id}.",
    "Oh, I meant {id}.",
    "I misread it. It's {id}.",
    "Then try {id}.",
)
CHOOSE = (
    "The {thing}.",
    "The {thing}, please.",
    "I mean the {thing}.",
    "It's about the {thing}.",
    "{thing}",
)
INSTEAD: dict[Intent, tuple[str, ...]] = {
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
}

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
