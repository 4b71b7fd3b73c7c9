"""Pure decisions: values and the time in, values out; the same on a device and in a simulation of a fleet.

- `rollout`: which release a device shall run. `window`: the hours in which it may switch.
- `variant`: which variant of a release fits a device, and why each other one does not.
- `code`: which files of a release run as code. `config_text`: the fields of a config.pbtxt.
- `probation`: whether a new release is good or bad, from its figures and those of the release before.
"""
