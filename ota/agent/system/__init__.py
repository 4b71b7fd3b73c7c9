"""The system of a device of the image: which version it should run, and its update. docs/image_updates.md.

plans   builds the TensorRT plans that a new system needs, on its first start
state   reads which image runs, and the record of its versions
update  decides, fetches, and stages a version; hands it to the root side
verify  verifies a staged version again, for the root side
"""
