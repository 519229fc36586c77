"""The cost of a session: its token counts under the names that stores use, and prices per token.

The cost limits of the language model that judges belong to `judging.llm_client`.
"""

from collections.abc import Iterable, Mapping

import msgspec

_INPUT_TOKENS = ("input_tokens", "prompt_tokens")
_OUTPUT_TOKENS = ("output_tokens", "completion_tokens")
"""Names of token counts in stores."""
DAYS_PER_MONTH = 30


class Prices(msgspec.Struct, frozen=True):
    """Prices with which today's model is compared with an own model.

    Attributes:
        input_usd: US dollars per million input tokens of today's model.
        output_usd: US dollars per million output tokens of today's model.
        own_model_usd: US dollars per month for the machine that serves an own model.
    """

    input_usd: float = 0.0
    output_usd: float = 0.0
    own_model_usd: float | None = None


NO_PRICES = Prices()


class TokenUsage(msgspec.Struct, frozen=True):
    """The tokens of a session, or the mean tokens of several sessions.

    Attributes:
        input: The number of input tokens; None if it is not known.
        output: The number of output tokens; None if it is not known.
    """

    input: float | None
    output: float | None


def read_tokens(usage: Mapping[str, int]) -> TokenUsage:
    """Return the tokens of a session, given the counts of its store by name."""
    return TokenUsage(_read_count(usage, _INPUT_TOKENS), _read_count(usage, _OUTPUT_TOKENS))


def _read_count(usage: Mapping[str, int], names: Iterable[str]) -> float | None:
    return next((float(usage[name]) for name in names if name in usage), None)


def compute_cost(cost_usd: float | None, tokens: TokenUsage, prices: Prices) -> float | None:
    """Return the cost of a session in US dollars; None if it is not known.

    Args:
        cost_usd: The cost according to the store, which counts if there are no prices or no tokens.
        tokens: The tokens of the session.
        prices: The prices per token.
    """
    if tokens.input is None or not (prices.input_usd or prices.output_usd):
        return cost_usd
    return (tokens.input * prices.input_usd + (tokens.output or 0) * prices.output_usd) / 1_000_000
