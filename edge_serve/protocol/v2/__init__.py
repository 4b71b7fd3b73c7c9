"""The v2 protocol over HTTP: routes, and JSON and binary bodies. Start reading in `routes` and `infer`.

bodies          the JSON bodies of every v2 operation other than inference
forwarding      `--http-header-forward-pattern`
generate        `generate` and `generate_stream`
infer           the body of an inference request into an `InferRequest`
infer_header    the JSON part of an inference request into an `InferRequest`, with Triton's order of checks and
infer_response  an `InferResponse` as the bytes of a v2 reply
infer_split     the JSON part of an inference request in two
infer_tensors   tensors as JSON: the `data` array of an input into bytes, the bytes of an output into a `data`
json_text       JSON as Triton reads it
routes          which operation a request asks for
settings        the bodies of `/v2/logging` and `/v2/trace/setting` (server src/http_server.cc, HandleLogging
"""
