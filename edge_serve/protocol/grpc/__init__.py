"""gRPC: the messages of grpc_service.proto, and their framing over HTTP/2. Start reading in `infer`.

bodies            messages of every call other than inference
grpc_service_pb2  message classes of grpc_service.proto, built at import from its descriptor set
infer             decodes the bytes of a ModelInferRequest, with a memo for requests that repeat
reflection        answers server reflection from the descriptor pool
request           converts a ModelInferRequest message, with Triton's order of checks and its texts
response          encodes the frames of a reply, and an `InferResponse` as the bytes of a ModelInferResponse
wire              statuses, message prefixes, timeouts, and compression of gRPC over HTTP/2; numbers of protobuf
"""
