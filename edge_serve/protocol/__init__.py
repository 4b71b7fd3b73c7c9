"""Sans-I/O decoders and encoders of the network protocols: bytes in, values out; no sockets, no clock.

May import layer 0 only (docs/rooms.md). Start reading in `v2/infer.py`, the decoder of inference requests over HTTP.

    grpc/       the messages of grpc_service, as gRPC carries them
    http1/      HTTP/1.1: request heads, bodies, and response heads
    http2/      HTTP/2, the server's side (RFC 9113)
    inference/  the parts of inference requests that HTTP and gRPC share
    v2/         the v2 protocol over HTTP: JSON and binary bodies
"""
