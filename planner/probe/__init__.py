"""What this machine is: devices, memory, links, network and software, and what of it is wrong for training.

    nvidia, nvml, nvidia_smi, amd -> gpus      asks drivers, never opens a device
    host, pci, network, software               asks the kernel and the installed packages
    examine -> MachineReport                   all of the above, with what could not be seen in words
    faults_*                                   pure: report -> findings, as `planner check` gives them
    cluster_file                               pure: report -> the cluster file that a job file reads

Owns looking. Leaves running anything on a device to `planner.runtime` (child programs), and judging configurations to
`planner.rules`. Nothing is imported here, so that trials pay for what they ask alone.
"""
