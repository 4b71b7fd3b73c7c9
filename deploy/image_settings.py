"""The table of keys in docs/image_settings.md, made from the table that the device checks with."""

from __future__ import annotations

from pathlib import Path

from image.device.provision.schema import KEYS

PAGE = Path(__file__).parents[1] / "docs/image_settings.md"
_START, _END = "<!-- keys -->\n", "<!-- end of keys -->"


def page() -> str:
    """Return the page with the table of today."""
    text = PAGE.read_text()
    before, _, rest = text.partition(_START)
    _, _, after = rest.partition(_END)
    return f"{before}{_START}{table()}{_END}{after}"


def table() -> str:
    """Return a row for each key."""
    rows = [f"| `{key.name}` | {_type(key.kind.value)} | {key.text} |\n" for key in KEYS]
    return "".join(["| key | value | meaning |\n|---|---|---|\n", *rows])


def _type(text: str) -> str:
    return text.replace("the name of a file beside edge-serve.toml, or its text", "file").replace(
        '"dhcp" or a list of texts', '`"dhcp"`, or a list of texts'
    )
