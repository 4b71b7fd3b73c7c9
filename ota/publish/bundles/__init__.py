"""A bundle out of model directories: `manifest.json` and `blobs/`, the same bytes for the same input.

`source` reads a model directory, `golden` writes its golden test, `variants` reads what is for which hardware, `build`
puts all together. Nothing of a model is run here.
"""
