"""Makes a bundle from model directories: `manifest.json` and `blobs/`. The same input gives the same bytes.

No code of a model is run here.

    source    reads a model directory
    golden    writes the golden test of a model
    golden_document  reads golden.json as strictly as a device
    variants  reads which files are for which hardware
    build     writes blobs and manifest
"""
