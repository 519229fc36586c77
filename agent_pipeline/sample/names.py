"""Names, greetings and contact details of fictional users."""

from random import Random

FIRST = ("Ana", "Ben", "Carla", "Dev", "Ella", "Finn", "Grace", "Hugo", "Iris", "Jon", "Kira", "Leo", "Maya", "Nils",
         "Olga", "Paul", "Rosa", "Sam", "Tara", "Uma", "Vera", "Will", "Yara", "Zoë", "José", "Amir")  # fmt: skip
LAST = ("Novak", "Hill", "Costa", "Patel", "Reed", "Berg", "Stone", "Marsh", "Klein", "Wood", "Silva", "Khan", "Moore",
        "Lund", "Petrov", "Young", "Diaz", "Fox", "Singh", "Park", "Webb", "Rossi", "Núñez", "Cole", "Brandt")  # fmt: skip
GREETINGS = ("Hi, ", "Hello, ", "Hi there. ", "Good morning. ", "Hey, ", "Good evening. ")
THANKS = (" Thanks!", " Thank you.", " Many thanks.", " Cheers!")


def two_names(rng: Random) -> tuple[str, str]:
    """Return two full names with different first names and different last names."""
    return tuple(
        " ".join(name) for name in zip(rng.sample(FIRST, 2), rng.sample(LAST, 2), strict=True)
    )  # type: ignore[return-value]


def personal_detail(kind: str, rng: Random) -> str:
    """Return a sentence with personal data that redaction must find.

    The data belongs to nobody: example.com is reserved (RFC 2606), numbers 555-01xx are reserved
    for fiction, and 4111 ... is the card networks' test number.
    """
    digits = f"{rng.randrange(100):02d}"
    return {
        "email": f" Write to {rng.choice(FIRST[:20]).lower()}.{digits}@example.com.",
        "phone": f" My phone is (212) 555-01{digits}.",
        "card": " I paid with card 4111 1111 1111 1111.",
    }[kind]


def chatter(text: str, share: float, rng: Random) -> str:
    """Return the text with a greeting before it and thanks after it, each with probability `share`."""
    before = rng.choice(GREETINGS) if rng.random() < share else ""
    behind = rng.choice(THANKS) if rng.random() < share else ""
    return f"{before}{text}{behind}"
