"""The v2 protocol over HTTP: JSON and binary bodies. Start reading in `infer`.

May import layer 0, and `protocol/inference`.

bodies         the JSON bodies of all v2 operations except inference
generate       the bodies of `generate` and `generate_stream`
infer          codec of inference: requests as JSON, JSON with binary tensors, or raw bytes; responses
infer_header   the JSON part of an inference request, with Triton's order of checks
infer_tensors  tensors as JSON arrays, both ways
json_text      JSON as Triton reads it, with its error texts
"""
