"""gRPC: the messages of grpc_service.proto, and their framing over HTTP/2.

bodies            the messages of every call other than inference
generate          write grpc_service.binpb and its .pyi from the .proto
grpc_service_pb2  the message classes of grpc_service.proto, built at import from its descriptor set
infer             the bytes of a ModelInferRequest into an `InferRequest`
reflection        answers to server reflection (grpc doc/server-reflection.md), out of the descriptor pool of
request           a ModelInferRequest message into an `InferRequest`, with Triton's order of checks and its
response          an `InferResponse` as the bytes of a ModelInferResponse, written by hand
wire              gRPC over HTTP/2 (grpc/grpc doc/PROTOCOL-HTTP2.md)
"""
