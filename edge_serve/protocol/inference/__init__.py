"""The parts of inference requests that HTTP and gRPC share.

classification  the classification extension
compression     gzip and deflate bodies, both ways (server src/data_compressor.h, `CompressionTypeUsed` in
cost            how much coding an event loop may do at once, and what is more than that
validate        does a request fit the model? Triton's checks and texts (core src/infer_request.cc
"""
