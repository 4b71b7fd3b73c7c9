"""The v2 protocol over HTTP: decodes requests, calls the service, encodes responses. Start reading in `application`.

May import `transport/door`, `transport/http`, `transport/sockets`, and every room below `transport`.

application      the application: access checks, and dispatch by operation
codec_offload    runs jobs that would block the event loop in a codec process
edge             routes beside the v2 protocol: status document, status page, safe mode, reload
generate         the answers to `generate` and `generate_stream`
generate_routes  the requests of `generate` and `generate_stream`
head             the parts of a request head that the v2 protocol uses
infer            the operation `infer`
operations       the short operations: health, metadata, statistics, settings, the repository, shared memory
redaction        the status document for clients that may not read the log
routes           the path table: operations, methods, roles, and path patterns
"""
