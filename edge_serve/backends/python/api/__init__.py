"""The classes that a model's code sees as `triton_python_backend_utils`.

advice      advice on exceptions of a model's code whose own text does not lead to the fix
calls       calls of other models while they are under way
config      `pb_utils.ModelConfig`
dlpack      DLPack capsules in and out, without a framework
errors      errors that Python models see and make, and the words in which their failures are told
logger      `pb_utils.Logger`
metrics     `MetricFamily` and `Metric`
repository  `load_model`, `unload_model`, `is_model_ready`
request     `InferenceRequest`
response    `InferenceResponse` and `InferenceResponseSender`
tensor      `pb_utils.Tensor`
"""
