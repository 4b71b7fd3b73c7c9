"""The commands for the system of a device of the image.

operate  `system status`, `apply`, `rollback`, `factory-reset`
plans    `run-plans`, for edge-plans.service
verify   `verify-system`, for the root side of updates
"""
