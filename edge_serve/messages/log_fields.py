"""The subject of a log line as fields of its record: `log.info("...", extra=model_fields(name, version))`.

The journal (observe/log/journal.py), the JSON format (log.py) and the status document (observe/status/events.py) show
them.
"""

from __future__ import annotations

#: the fields, as attributes of a `logging.LogRecord`
FIELDS = ("model", "version", "request_id")

#: marks lines that show something to a reader of the log and are no event: `extra={DISPLAY: True}`
DISPLAY = "display"

#: marks lines that come again with each restart of a worker, and slow down as errors do (observe/log/limit.py)
RECURS = "recurs"

#: the output that a warning about a model's answer concerns
OUTPUT = "output"

#: loggers whose lines are the models' own words
CHATTER = frozenset(("edge_serve.model", "edge_serve.workers.front.output"))


def model_fields(model: str, version: str | int = "", request_id: str = "") -> dict[str, str]:
    """Return the subject of a log line, for `extra` of the call; what is not known is left out."""
    values = (model, str(version), request_id)
    return {name: value for name, value in zip(FIELDS, values, strict=True) if value}
