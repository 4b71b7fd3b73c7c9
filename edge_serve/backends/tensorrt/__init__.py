"""The backend `tensorrt`, as far as it decides without the library. Worker's side. Start with `engine`.

bindings  the tensors of an engine as the configuration names them
checks    checks that a configuration and an engine agree
complete  auto-completion of a configuration from an engine
engine    a TensorRT engine as plain values, and the reader of an engine object
errors    errors of TensorRT: cause and advice
graphs    CUDA graphs: which ones an instance captures, and which one a batch runs with
plan      the file of an engine, and the description beside it of where it runs
profiles  the optimization profiles of an instance, and the choice of one for a batch
settings  the settings in a configuration and in `--backend-config`
"""
