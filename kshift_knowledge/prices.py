"""What tokens cost: dollars per million tokens, by model; knows no account and no provider."""

from __future__ import annotations

from collections.abc import Mapping

# https://platform.openai.com/docs/pricing, "Embeddings"; the local model costs no money.
DEFAULT_PRICES: Mapping[str, float] = {
    "text-embedding-3-small": 0.02,
    "text-embedding-3-large": 0.13,
    "text-embedding-ada-002": 0.10,
    "all-MiniLM-L6-v2": 0.0,
}


def parse_prices(spelled: str) -> dict[str, float]:
    """
    Read `model=dollars, ...` on top of the default prices.

    Raises ValueError, naming the part that is not a price.
    """
    prices = dict(DEFAULT_PRICES)
    for part in filter(None, (part.strip() for part in spelled.split(","))):
        model, _, dollars = (word.strip() for word in part.rpartition("="))
        try:
            price = float(dollars)
        except ValueError:
            price = -1.0
        if not model or not 0.0 <= price < float("inf"):
            raise ValueError(f"{part!r} is not `model=dollars per million tokens`")
        prices[model] = price
    return prices


def cost_usd(prices: Mapping[str, float], model: str, tokens: int) -> float | None:
    """Return what *tokens* cost, to the millionth of a dollar; None for an unknown model."""
    price = prices.get(model)
    return None if price is None else round(price * tokens / 1_000_000, 6)
