"""The model configuration: reading config.pbtxt and JSON, defaults, auto-completion, advice.

complete          completes a configuration from an ONNX model, and checks that the two agree
generate          writes model_config.binpb and its .pyi from model_config.proto (for developers)
json_form         a configuration as Triton's JSON, both ways
layout            advice on a directory in which no model was found
loose_json        JSON as protobuf's C++ parser reads it: bare keys, single quotes, trailing commas
model_config_pb2  the message classes of model_config.proto
normalise         the defaults that Triton fills in
notes             advice on configurations that are valid but hardly intended
text              config.pbtxt into a message, with errors that lead to the line
"""
