"""The v2 protocol over HTTP: decodes requests, calls the service, encodes responses. Start reading in `application`.

May import `transport/door`, `transport/http`, `transport/sockets`, and every room below `transport`.

application      the application: access checks, dispatch by operation, and the short operations
call_service     interface of the service for all operations except inference
codec_offload    runs jobs that would block the event loop in a codec process
edge             routes beside the v2 protocol: status document, status page, safe mode, reload
generate         the answers to `generate` and `generate_stream`
generate_routes  the requests of `generate` and `generate_stream`
head             the parts of a request head that the v2 protocol uses, read once per distinct head
infer            the operation `infer`
redaction        the status document for clients that may not read the log
settings         the operations `/v2/logging` and `/v2/trace/setting`
routes           the path table: operations, methods, roles, and path patterns
shared_memory    the operations on shared memory regions
traced           exchanges that record the timestamps of traced requests
"""
