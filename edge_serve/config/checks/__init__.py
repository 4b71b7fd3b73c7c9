"""Checks of a model configuration, in Triton's words. Start reading in `checks`.

batching   checks of `dynamic_batching`
checks     what a model configuration may not say, in Triton's words (core src/model_config_utils.cc
ensemble   checks of `ensemble_scheduling`
instances  checks of `instance_group`, after normalise.normalise_instance_groups (ValidateInstanceGroup)
io         checks of inputs, outputs, batch inputs and batch outputs (core src/model_config_utils.cc
sequence   checks of `sequence_batching`
"""
