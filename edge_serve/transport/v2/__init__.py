"""The v2 protocol over HTTP: decode, call the service, encode. Start reading in `application`.

application      the v2 protocol over HTTP: decode, call the service, encode (server src/http_server.cc
call_service     what every door needs of service.Service, inference aside
codec_offload    runs a codec job for a request
edge             routes beside the v2 protocol
generate         `generate` and `generate_stream`
generate_routes  `generate` and `generate_stream` over HTTP: decode, call the service
head             what a request head says about a v2 request, worked out once per head
infer            `infer` over HTTP: decode, call the service, encode
redaction        the status document as clients of other hosts see it
settings         `/v2/logging` and `/v2/trace/setting` over HTTP
shared_memory    `/v2/systemsharedmemory` and `/v2/cudasharedmemory` over HTTP (server src/http_server.cc)
traced           inference over HTTP while requests are traced
"""
