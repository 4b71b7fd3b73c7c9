"""Checks of a model configuration, in Triton's words. Start reading in `checks`.

batching   `dynamic_batching` and `sequence_batching`
checks     the whole configuration, in the order of Triton's ValidateModelConfig
ensemble   `ensemble_scheduling`, alone and against its members
instances  `instance_group`
io         inputs, outputs, `batch_input` and `batch_output`
"""
