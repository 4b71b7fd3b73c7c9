"""The backend `tensorrt`: plans of TensorRT 8.6 to 11 on NVIDIA GPUs (GPU side: `backends/cuda`). Start with `backend`.

backend        opens a model and its instances
bindings       the tensors of an engine as the configuration names them
checks         checks that a configuration and an engine agree
complete       auto-completion of a configuration from an engine
context        an execution context: a profile, its CUDA graphs
engine         a TensorRT engine as plain values, and the reader of an engine object
errors         errors of TensorRT: cause and advice
graphs         CUDA graphs: which ones an instance captures, and which one a batch runs with
instance       one instance: copies a batch to the device, runs it, copies the outputs back
library        loads TensorRT after the CUDA device count was asked
loaded_engine  an engine that is loaded, for one device and DLA core
plan           the file of an engine, and the description beside it of where it runs
profiles       the optimization profiles of an instance, and the choice of one for a batch
settings       the settings in a configuration and in `--backend-config`
"""
