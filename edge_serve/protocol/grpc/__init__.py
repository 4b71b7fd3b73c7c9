"""gRPC: the messages of grpc_service.proto, and their framing over HTTP/2. Start reading in `infer`.

bodies            messages of every call other than inference
generate          writes grpc_service.binpb and its .pyi from the .proto
grpc_service_pb2  message classes of grpc_service.proto, built at import from its descriptor set
infer             decodes the bytes of a ModelInferRequest, with a memo for requests that repeat
reflection        answers server reflection from the descriptor pool
request           converts a ModelInferRequest message, with Triton's order of checks and its texts
response          encodes an `InferResponse` as the bytes of a ModelInferResponse
wire              heads, trailers, statuses and message prefixes of gRPC over HTTP/2
"""
