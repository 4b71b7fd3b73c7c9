"""Any text as one line for people, and the line about models that failed to load."""

from __future__ import annotations

from collections.abc import Collection, Mapping

#: C0, DEL and C1: a terminal obeys all of them
_ESCAPES = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160))} | {10: "\\n"}


def one_line(text: str) -> str:
    """Return `text` with control characters escaped."""
    return text.translate(_ESCAPES)


def shortened(text: str, most: int = 200) -> str:
    """Return `text` in one line of at most `most` characters."""
    line = one_line(" ".join(text.split()))
    return line if len(line) <= most else line[: most - 3] + "..."


#: models that a line names; others are counted
MOST_NAMES = 4
#: characters of one reason
_REASON = 160


def failed_line(failed: Mapping[str, str], required: Collection[str], serving: int) -> str:
    """Return a line such as `3 models failed: required seg (no such file), det (no licence), pose; 2 serve`.

    Args:
        failed: model -> why.
        required: names of models without which the server is not ready; those that failed come first.
        serving: how many models serve.
    """
    names = sorted(failed, key=lambda name: (name not in required, name))
    texts = [
        f"{'required ' if name in required else ''}{name}" + (f" ({_brief(failed[name])})" if failed[name] else "")
        for name in names[:MOST_NAMES]
    ]
    more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    return (
        f"{models_text(len(names))} failed: {', '.join(texts)}{more}; {serving} {'serves' if serving == 1 else 'serve'}"
    )


def _brief(reason: str) -> str:
    """Return a reason without the traceback that a Python model adds."""
    return shortened(reason.partition("\n\nAt:\n")[0], _REASON)


def models_text(count: int) -> str:
    """Return `1 model`, or `5 models`."""
    return "1 model" if count == 1 else f"{count} models"
