"""The calls of grpc_service.proto, health, and reflection. Start reading in `server`.

calls       the unary calls other than inference
door        opens the gRPC door
health      `grpc.health.v1.Health/Watch`: notifies watchers of readiness
infer       ModelInfer
reflection  server reflection
server      the gRPC server: its methods, its connections, its certificates
stream      one ModelStreamInfer call
traced      records trace timestamps of inference calls: a tracer, and a call that marks its answer
"""
