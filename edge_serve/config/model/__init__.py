"""The model configuration: reading config.pbtxt and JSON, defaults, auto-completion, advice.

complete          completes a configuration from an ONNX model, and checks that the two agree
json_form         a configuration as Triton's JSON, both ways
layout            advice on a directory in which no model was found
model_config_pb2  the message classes of model_config.proto
normalise         the defaults that Triton fills in
notes             advice on configurations that are valid but hardly intended
parameters        the model parameters of our own
text              config.pbtxt into a message, with errors that lead to the line
"""
