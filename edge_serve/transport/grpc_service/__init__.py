"""The calls of grpc_service.proto, health, and reflection. Start reading in `server`.

calls     the unary calls other than inference
infer     ModelInfer
server    the gRPC server: its methods, its connections, its certificates
standard  the standard services of gRPC: health and reflection
stream    one ModelStreamInfer call
"""
