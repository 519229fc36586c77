"""Names, greetings and contact details of users who do not exist."""

from random import Random

FIRST = ("Ana", "Ben", "Carla", "Dev", "Ella", "Finn", "Grace", "Hugo", "Iris", "Jon", "Kira", "Leo", "Maya", "Nils",
         "Olga", "Paul", "Rosa", "Sam", "Tara", "Uma", "Vera", "Will", "Yara", "Zoë", "José", "Amir")  # fmt: skip
LAST = ("Novak", "Hill", "Costa", "Patel", "Reed", "Berg", "Stone", "Marsh", "Klein", "Wood", "Silva", "Khan", "Moore",
        "Lund", "Petrov", "Young", "Diaz", "Fox", "Singh", "Park", "Webb", "Rossi", "Núñez", "Cole", "Brandt")  # fmt: skip
GREETINGS = ("Hi, ", "Hello, ", "Hi there. ", "Good morning. ", "Hey, ", "Good evening. ")
THANKS = (" Thanks!", " Thank you.", " Many thanks.", " Cheers!")


def two_names(rng: Random) -> tuple[str, str]:
    """Two full names that differ in first and last name."""
    return tuple(
        " ".join(name) for name in zip(rng.sample(FIRST, 2), rng.sample(LAST, 2), strict=True)
    )  # type: ignore[return-value]


def personal_detail(kind: str, rng: Random) -> str:
    """A sentence with personal data that redaction must find; the address, the number and the card
    belong to nobody.

    example.com is reserved (RFC 2606), 555-01xx numbers are reserved for fiction, 4111 ... is the
    card networks' test number.
    """
    digits = f"{rng.randrange(100):02d}"
    return {
        "email": f" Write to {rng.choice(FIRST[:20]).lower()}.{digits}@example.com.",
        "phone": f" My phone is (212) 555-01{digits}.",
        "card": " I paid with card 4111 1111 1111 1111.",
    }[kind]


def chatter(text: str, share: float, rng: Random) -> str:
    """The text, with a greeting before it and thanks behind it, each with probability `share`."""
    before = rng.choice(GREETINGS) if rng.random() < share else ""
    behind = rng.choice(THANKS) if rng.random() < share else ""
    return f"{before}{text}{behind}"
