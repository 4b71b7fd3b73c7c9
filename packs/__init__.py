"""Backend packs: backends with an environment of their own (docs/packs.md). Not part of the package edge_serve.

Each folder is a pack: its files are copied to `<backend-directory>/<name>/`, and imported in a worker as one package. A
pack imports the standard library, NumPy, edge_serve.{backends,errors,messages,tensors}, modules of edge_serve.config
that need the standard library only, and its own library.

fil/       forests of XGBoost, LightGBM, and scikit-learn
openvino/  models of OpenVINO, ONNX, TensorFlow, TensorFlow Lite, and PaddlePaddle
pytorch/   TorchScript, exported programs, and AOTInductor packages
"""
