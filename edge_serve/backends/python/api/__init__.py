"""The classes that a model's code sees as `triton_python_backend_utils`.

advice      advice on exceptions whose own text does not lead to the fix
calls       calls of other models (BLS) in progress
config      `pb_utils.ModelConfig`
dlpack      DLPack capsules in and out, without a framework
errors      `pb_utils.TritonError` and `TritonModelException`, and the texts of a model's failures
logger      `pb_utils.Logger`
metrics     `pb_utils.MetricFamily` and `Metric`
repository  `load_model`, `unload_model`, `is_model_ready`
request     `InferenceRequest`
response    `InferenceResponse`
sender      `InferenceResponseSender`
tensor      `Tensor`, in the memory of the host or of a GPU
"""
