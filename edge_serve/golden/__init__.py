"""The golden test of a model: recorded inputs and the outputs that they must have (docs/golden_tests.md).

`reader` turns the files of `golden/` into values and refuses what cannot be a test; `comparison` says how outputs
differ. Neither acts on a model: `models/load/golden.py` sends the inputs. `writer` writes a test for `edge-serve
check`. Start with `reader`.

    comparison  comparison of an output with the recorded one
    reader      reader of a golden test
    writer      writer of a golden test
"""
