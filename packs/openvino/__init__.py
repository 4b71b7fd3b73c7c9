"""The pack `openvino`: models of OpenVINO, ONNX, TensorFlow, TensorFlow Lite, and PaddlePaddle on the CPU.

advice      what a file is that OpenVINO cannot read, and what to do
backend     opens a model and its instances: start here
instance    one instance: runs a batch
library     the calls of the library; only this file imports it
settings    the parameters of config.pbtxt, as plain values
signature   a model's tensors beside the configuration's, and the shapes that the model is compiled with
"""
