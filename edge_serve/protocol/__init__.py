"""Sans-I/O readers and writers of the wire: bytes in, values out; no sockets, no clock.

`http1*` is the HTTP/1.1 state machine, `http2*` that of HTTP/2, `grpc_*` what gRPC puts on it, `routes` the path
table, `infer` (with `infer_header`, `infer_split`, `infer_tensors`, `infer_response`) the codec of inference
requests, `validate` the checks that all doors share, `generate` and `settings` the bodies of their routes, `bodies`
every other v2 body, `work` what is too much for a loop, `json_text` JSON as Triton reads it, `classification` and
`compression` what their names say. Imports layer 0 only. Start reading in `infer`.

    grpc/       gRPC
    http1/      HTTP/1
    http2/      HTTP/2, the server's side (RFC 9113)
    inference/  The parts of inference requests that HTTP and gRPC share
    v2/         The v2 protocol over HTTP
"""
