"""Pure decisions: values and the time in, values out. They are the same on a device and in a simulation of a fleet.

rollout       which release a device should run
window        the hours in which a device may switch
variant       which variant of a release fits a device, why the others do not, and which can fit none
system        which version of the system a device may install
code          which files of a release run as code
config_text   reads the fields of a config.pbtxt
probation     judges a new release by its statistics and those of the release before
gate          decides whether a rollout may take its next step
report_chain  sorts reports, and detects copied or restored disks by the chain of reports
"""
