"""The model configuration: reading config.pbtxt and JSON, defaults, auto-completion, advice.

complete          auto-completion from an ONNX model's own inputs and outputs, and the check that model and
generate          write model_config.binpb and its .pyi from model_config.proto
json_form         ModelConfig <-> Triton's JSON: the `/config` endpoint, load overrides, and what a worker is
layout            advice on a model directory in which no model was found
loose_json        JSON as protobuf's C++ reader takes it
model_config_pb2  the message classes of model_config.proto, built at import from its descriptor set
normalise         the defaults that Triton fills into a model configuration (core src/model_config_utils.cc)
notes             advice on a model configuration that is valid, but hardly what its author wanted
text              config.pbtxt -> ModelConfig
"""
