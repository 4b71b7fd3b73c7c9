"""The state of the server as one JSON document, and what shows it: `edge-serve status`, `edge-serve top`.

In the server, `collect` reads what there is to tell, `document` makes the JSON of it (pure), and `events` keeps the
newest lines of the log; `transport/v2/edge.py` answers with it, and the page `transport/http/ui/` draws it. In the
program that asks, `client` fetches it, `rates` makes rates and latencies of two of them, `report` writes text, `top`
repeats that, and `command` reads the command line. Those import the standard library only. docs/status.md is for users.

    client    fetches the status document of a running server, over its UNIX socket for administration or over HTTP
    collect   collects what the status document tells
    command   `edge-serve status` and `edge-serve top`
    document  the status document
    events    the newest lines of the log, for the status document
    probe     figures of the machine and of processes for the status document
    rates     rates and latencies
    report    the status document as text for a terminal
    top       the report again and again on one screen, with ANSI sequences only, so over ssh too
"""
