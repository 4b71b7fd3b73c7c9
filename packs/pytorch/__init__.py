"""The pack `pytorch`: TorchScript, exported programs (`torch.export`), and AOTInductor packages. Start in `backend`.

archive      the kind of a model's file, from its first bytes and names (pure, without torch)
backend      finds the file, imports torch, and opens a model and its instances
call_spec    names of the inputs and outputs of a model.pt2 (pure, without torch)
compiled     a package that AOTInductor compiled
cores        divides the cores among the runs of this process (pure, without torch)
exported     an exported program
gpu          which device an instance is for, and the library's errors there
instance     one instance: joins a batch, runs it, and takes the outputs apart; tensors of requests as those of torch
model        Triton's other runtime: a network as Python code
names        names of the inputs and outputs of a TorchScript model (pure, without torch)
opener       loads a model's file, and makes instances
scripted     a TorchScript model
settings     Triton's parameters (pure, without torch)
signature    the tensors of a configuration, their types, and their places in the model (pure, without torch)
"""
