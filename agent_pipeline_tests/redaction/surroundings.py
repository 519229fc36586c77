"""Keys of providers, made by their documented formats, and what people and programs write around a key."""

import random
import string
from collections.abc import Callable

from agent_pipeline_tests.redaction.planting import ALPHANUMERIC, HEX, KINDS, UPPER, jwt, some

_BY_NAME = {kind.name: kind.make for kind in KINDS}
_BASE64 = ALPHANUMERIC + "-_"

KEYS: dict[str, Callable[[random.Random], str]] = {
    **{name: _BY_NAME[name] for name in (
        "OpenAI key", "Anthropic key", "Google API key", "AWS key id", "GitHub token", "GitLab token", "Slack token", "Stripe key",
    )},
    "JWT": jwt,
    "Hugging Face": lambda g: "hf" + "_" + some(g, 34, string.ascii_letters),
    "Groq": lambda g: "gs" + f"k_{some(g, 52)}",
    "Databricks": lambda g: "dap" + f"i{some(g, 32, HEX)}",
    "HashiCorp Vault": lambda g: "hv" + f"s.{some(g, 92, _BASE64)}",
    "npm": lambda g: "npm" + f"_{some(g, 36)}",
    "SendGrid": lambda g: f"SG.{some(g, 22)}.{some(g, 43)}",
    "Telegram": lambda g: f"{some(g, 10, '123456789')}:AA{some(g, 33)}",
    "Discord": lambda g: f"M{some(g, 25)}.{some(g, 6)}.{some(g, 38)}",
    "GitHub fine-grained": lambda g: "github" + f"_pat_{some(g, 22)}_{some(g, 59)}",
    "Twilio": lambda g: "S" + f"K{some(g, 32, HEX)}",
    "Mailgun": lambda g: "key" + f"-{some(g, 32, HEX)}",
    "PyPI": lambda g: "pypi" + f"-AgEIcHlwaS5vcmc{some(g, 70, _BASE64)}",
    "DigitalOcean": lambda g: "dop" + f"_v1_{some(g, 64, HEX)}",
    "Shopify": lambda g: "shp" + f"at_{some(g, 32, HEX)}",
    "Square": lambda g: "sq0" + f"csp-{some(g, 43, _BASE64)}",
    "New Relic": lambda g: "NR" + f"AK-{some(g, 27, UPPER)}",
    "Linear": lambda g: "lin" + f"_api_{some(g, 40)}",
    "Notion": lambda g: "ntn" + f"_{some(g, 11, string.digits)}{some(g, 35)}",
    "Replicate": lambda g: "r8" + f"_{some(g, 37)}",
    "Doppler": lambda g: "dp.p" + f"t.{some(g, 43)}",
    "Grafana": lambda g: "glsa" + f"_{some(g, 32)}_{some(g, 8, HEX)}",
    "Postman": lambda g: "PM" + f"AK-{some(g, 24, HEX)}-{some(g, 34, HEX)}",
    "Figma": lambda g: "fig" + f"d_{some(g, 40, _BASE64)}",
    "Perplexity": lambda g: "ppl" + f"x-{some(g, 48)}",
    "xAI": lambda g: "xa" + f"i-{some(g, 80)}",
    "OpenRouter": lambda g: "sk" + f"-or-v1-{some(g, 64, HEX)}",
    "Stripe webhook": lambda g: "whs" + f"ec_{some(g, 32)}",
    "Supabase": lambda g: "sb" + f"p_{some(g, 40, HEX)}",
    "Fly.io": lambda g: "fo1" + f"_{some(g, 43, _BASE64)}",
    "Airtable": lambda g: f"pat{some(g, 14)}.{some(g, 64, HEX)}",
    "Sentry": lambda g: "sntry" + f"s_{some(g, 100)}",
}  # fmt: skip

SURROUNDINGS = (
    "{}", "it is {}.", "{}, thanks", "({})", "[{}]", "<{}>", "{{{}}}", "'{}'", '"{}"', "`{}`", "\u201c{}\u201d", "\u2018{}\u2019",
    "\u00ab{}\u00bb", "key: {}; next", "?key={}&page=2", "{}!", "{}?", "{}: mine", "**{}**", "*{}*", "~{}~", "| {} | x |", "|{}|",
    "a,{},b", "x\n{}\ny", "x\t{}\ty", "{})", "see {}...", "{}\u2026", '{{"k": "{}"}}', "['{}', 1]", "- {}", "{}</code>",
)  # fmt: skip
