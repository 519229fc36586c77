"""Names, greetings and contact details of fictional users."""

from collections.abc import Sequence
from random import Random

FIRST = ("Ana", "Ben", "Carla", "Dev", "Ella", "Finn", "Grace", "Hugo", "Iris", "Jon", "Kira", "Leo", "Maya", "Nils",
         "Olga", "Paul", "Rosa", "Sam", "Tara", "Uma", "Vera", "Will", "Yara", "Zoë", "José", "Amir", "Renée", "Jürgen", "Chloé", "Søren", "Begoña")  # fmt: skip
LAST = ("Novak", "Hill", "Costa", "Patel", "Reed", "Berg", "Stone", "Marsh", "Klein", "Wood", "Silva", "Khan", "Moore",
        "Lund", "Petrov", "Young", "Diaz", "Fox", "Singh", "Park", "Webb", "Rossi", "Núñez", "Cole", "Brandt", "Peña", "Müller", "Åberg", "Ibáñez", "O'Neill")  # fmt: skip
STREETS = ("Oak Street", "Mill Lane", "Station Road", "Park Avenue")
GREETINGS = ("Hi, ", "Hello, ", "Hi there. ", "Good morning. ", "Hey, ", "Good evening. ")
THANKS = (" Thanks!", " Thank you.", " Many thanks.", " Cheers!")


OTHER_FIRST = ("Aisha", "Bruno", "Cora", "Diego", "Élodie", "Farid", "Gita", "Hanna", "Ivo", "Júlia", "Kofi", "Lena",
               "Mateo", "Noor", "Oscar", "Priya", "Quinn", "Rémi", "Sofía", "Tom")  # fmt: skip
OTHER_LAST = ("Adams", "Bauer", "Chen", "Dubois", "Evans", "Fischer", "García", "Haas", "Ito", "Jansen", "Kowalski",
              "López", "Meyer", "Nagy", "Okafor", "Pinto", "Quist", "Romão", "Šimek", "Tran")  # fmt: skip
"""Names for the variant `other_words`. No session of the sample has them."""


def draw_names(
    count: int, rng: Random, first: Sequence[str] = FIRST, last: Sequence[str] = LAST
) -> list[str]:
    """Return full names with different first names and different last names.

    Args:
        count: The number of names.
        rng: The random stream.
        first: The first names to draw from.
        last: The last names to draw from.
    """
    pairs = zip(rng.sample(first, count), rng.sample(last, count), strict=True)
    return [" ".join(pair) for pair in pairs]


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
        "address": f" My address is {rng.randrange(2, 90)} {rng.choice(STREETS)}, Springfield.",
    }[kind]


def chatter(text: str, share: float, rng: Random) -> str:
    """Return the text with a greeting before it and thanks after it, each with probability `share`."""
    before = rng.choice(GREETINGS) if rng.random() < share else ""
    behind = rng.choice(THANKS) if rng.random() < share else ""
    return f"{before}{text}{behind}"
