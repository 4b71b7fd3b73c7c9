"""Reads the documentation as steps in the printed order; `python -m tests.docs.pages` lists the commands not run.

A fenced block of `sh`, `bash`, `python` or `console` is a command. A `text` block after it is its output, with `...`
for anything at all. A block of any other kind, and one of Python, is a file if its first line is a comment with a path:
`# models/half/config.pbtxt`. These HTML comments, each on a line of its own, say more:

    <!-- not run: REASON -->     the next block is not run
    <!-- needs: PROGRAM -->      the next block is run where this program is installed
    <!-- run: COMMAND -->        a command that the page asks for in its text
    <!-- stop the server -->     Ctrl-C in the terminal of the last server
    <!-- numbers vary -->        any number matches a number of the next output
"""

from __future__ import annotations

import re
import shutil
import textwrap
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

ROOT = Path(__file__).parents[2]
SHELLS = ("sh", "bash")
COMMANDS = (*SHELLS, "python", "console")

_MARK = re.compile(r"<!-- (not run|needs|run|stop the server|numbers vary)(?:: (.+))? -->")
_PATH = re.compile(r"(?:#|//) ([\w-]+(?:[./][\w.-]+)+)")
_NUMBER = re.compile(r"\d+(?:[.,:]\d+)*")
#: first words of a command line that may only stand in a fenced block
_TYPED = re.compile(
    r" {4,}(?:\$ )?(?:curl|edge-serve(?! \d)|systemctl|pip|make|journalctl|python3?|docker|kubectl|apt-get|echo|dpkg) "
)


@dataclass(frozen=True)
class Step:
    """One step of a page.

    Attributes:
        kind: `command`, `file`, `stop`, or `left` for a command that is not run
        text: the command for bash, or the content of the file
        detail: the path of the file, or the reason why the command is not run
        shown: the output that the page shows
        vary: any number matches a number in `shown`
    """

    line: int
    kind: str
    text: str
    detail: str = ""
    shown: str | None = None
    vary: bool = False


def pages() -> list[str]:
    """Return the pages whose commands are run."""
    return ["README.md", *sorted(str(page.relative_to(ROOT)) for page in (ROOT / "docs").glob("*.md"))]


def steps(page: str) -> list[Step]:
    """Return the steps of a page of the checkout."""
    return steps_in((ROOT / page).read_text())


def steps_in(text: str) -> list[Step]:
    """Return the steps of a page."""
    found: list[Step] = []
    reason, vary = "", False
    for line, kind, detail, body in _parts(text):
        if kind == "not run":
            reason = detail
        elif kind == "needs":
            reason = "" if shutil.which(detail) else f"needs {detail}"
        elif kind == "numbers vary":
            vary = True
        elif kind == "stop the server":
            found.append(Step(line, "stop", ""))
        elif kind == "run":
            found.append(Step(line, "command", detail))
        elif kind == "text":
            if found and found[-1].kind == "command" and found[-1].shown is None:
                found[-1] = replace(found[-1], shown=body, vary=vary)
            vary = False
        else:
            found += _of_block(line, kind, body, reason)
            reason = ""
    return found


def _parts(text: str) -> Iterator[tuple[int, str, str, str]]:
    """Yield the marks and blocks of a page: line, kind of mark or language, detail of the mark, text of the block."""
    lines = iter(enumerate(text.splitlines(), 1))
    for number, line in lines:
        if mark := _MARK.fullmatch(line.strip()):
            yield number, mark[1], mark[2] or "", ""
        elif line.lstrip().startswith("```"):
            body = []
            for _, inner in lines:
                if inner.strip() == "```":
                    break
                body.append(inner)
            yield number, line.strip("` ").partition(" ")[0], "", textwrap.dedent("\n".join(body) + "\n")


def _of_block(line: int, language: str, body: str, reason: str) -> Iterator[Step]:
    """Return the steps of a fenced block; none for a block without commands."""
    path = _PATH.fullmatch(body.partition("\n")[0])
    if path and language not in (*SHELLS, "console"):
        yield Step(line, "file", body, path[1])
    elif reason:
        if language in COMMANDS:
            yield Step(line, "left", body, reason)
    elif language in SHELLS:
        yield Step(line, "command", body)
    elif language == "python":
        yield Step(line, "command", f"python3 - <<'END-OF-BLOCK'\n{body}END-OF-BLOCK\n")
    elif language == "console":
        for typed in re.split(r"^\$ ", body, flags=re.MULTILINE)[1:]:
            typed_lines = typed.splitlines()
            more = next((n for n, text in enumerate(typed_lines) if n and not text.startswith("> ")), len(typed_lines))
            command = "\n".join([typed_lines[0], *(text[2:] for text in typed_lines[1:more])])
            yield Step(line, "command", command, shown="\n".join(typed_lines[more:]) or None)


def as_shown(shown: str, printed: str, vary: bool = False) -> bool:
    """Return whether `printed` is the output on the page, apart from blanks at the ends of lines.

    With `vary`, numbers and the width of columns may differ.
    """
    wanted, got = ("\n".join(line.rstrip() for line in text.strip().splitlines()) for text in (shown, printed))
    if not vary:
        return re.fullmatch(".*?".join(map(re.escape, wanted.split("..."))), got, re.DOTALL) is not None
    wanted, got = (re.sub(r"[ -]*(\n)| +", r"\1 ", _NUMBER.sub("0", text)) for text in (wanted, got))
    return as_shown(wanted, got)


def typed_outside_of_blocks(text: str) -> Iterator[int]:
    """Return the lines of a page that look like commands outside of fenced blocks, which no test runs."""
    inside = False
    for number, line in enumerate(text.splitlines(), 1):
        inside ^= line.lstrip().startswith("```")
        if not inside and _TYPED.match(line):
            yield number


def summary() -> str:
    """Return how many blocks of the documentation are run, and the reasons why others are not."""
    every = [step for page in pages() for step in steps(page)]
    left = Counter(step.detail for step in every if step.kind == "left")
    run = sum(step.kind == "command" for step in every)
    lines = [f"commands of the documentation: {run} run as printed, {left.total()} not run"]
    return "\n".join([*lines, *(f"  {count:2} {reason}" for reason, count in left.most_common())])


if __name__ == "__main__":
    print(summary())
