"""The commands for the system of a device of the image.

operate  `system status`, `apply`, `rollback`, `factory-reset`
verify   `verify-system`, for the root side of updates
"""
