"""The golden test of a model: recorded inputs and the outputs that they must have (docs/golden_tests.md).

`reader` turns the files of `golden/` into values and refuses what cannot be a test; `comparison` says how outputs
differ. Both act on nothing: `models/golden.py` sends the inputs. Imports messages, protocol, and tensors. Start with
`reader`.
"""
