"""The state of the server as one JSON document, and what shows it: `edge-serve status`, `edge-serve top`.

    client    fetches the document from a running server, over its administration socket or HTTP
    collect   collects the facts in the server
    command   the commands `edge-serve status` and `edge-serve top`
    device_file  reads the status file of the device image
    document  makes the JSON document of the facts (pure)
    events    keeps the newest lines of the log for the document
    probe     reads figures of the machine and its processes
    rates     rates and latencies from two documents
    report    the document as text for a terminal
    top       repeats the report on one screen

`transport/v2/edge.py` answers with the document, and the page `transport/http/ui/` draws it. `client`, `rates`,
`report`, `top` and `command` run in the program that asks, and import no library beside Python's own.
"""
