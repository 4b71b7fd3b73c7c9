"""One real network, EfficientNet-Lite0 with its ImageNet weights, in every format that a pack reads.

photographs         fetches the pictures that it looks at
served              puts its files into a repository, and compares its answers
torch_network       writes the formats of PyTorch
libraries           installs TensorFlow, and writes the formats of TensorFlow
write_tensorflow    runs in the environment with TensorFlow
"""
