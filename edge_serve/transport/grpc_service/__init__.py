"""The calls of grpc_service.proto, health, and reflection. Start reading in `server`.

calls       the unary calls of the gRPC door other than inference
door        opens the gRPC door
health      `grpc.health.v1.Health/Watch`
infer       ModelInfer
reflection  server reflection
server      the gRPC server
stream      one ModelStreamInfer call
traced      inference over gRPC while requests are traced
"""
