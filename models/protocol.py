"""The number of what agents and control plane say to each other, and of what an agent does.

The version of the package tells no two commits apart, so this number does. An agent sends its own
with its registration; it is kept with the node, and `longshore doctor` names agents of another.

Raise `PROTOCOL` by one, and write below what the number brought, in the change that

- adds, removes or changes a field of a message between an agent and a control worker
  (`tests/models/test_protocol.py` holds their fields and fails then), or
- has an agent do something else that a control worker or a user relies on.

Not for what an older agent does as well as a newer one, such as another log line.

    0   agents from before heartbeats were counted
    1   each heartbeat of a watch says which it is; said by `Registration.counts_heartbeats`
    2   the agent sends this number
    3   it ends what a job left that killed its supervisor and the fork server
    4   it lifts what it said of its full disk, by the update `lift`
    5   it says which firmware of its host is in the fingerprint, and why the rest is not
    6   the spec of a job has constraints on labels of nodes; the agent does nothing with them
    7   it tells what a job wrote for others of its DAG, in the report of the process
    7   it runs batches of elements of arrays, by `run_elements` and `stop_elements`
    7   the spec of a job has its sizes (malleable), and the agent tells the process which it has
    7   it tells a process that its job has another size, by `resize_process`
    8   it ends a process, or an element, that has run for as long as its `max_duration` allows
    8   it knows a rank that joined an attempt by its number, and starts it where an earlier one of
        the attempt has left
    8   it brings the code of a job, and its Python environment, and stores what the job gives back
    9   the data of a job may say where nodes fetch it: the agent does, at the start at the latest
    9   it brings code, environment and data while a job waits for its turn there, by `prepare_job`
    9   it says what its node holds, by the signal `holds`
    9   the environment of a job may be an environment.yml of conda
    10  the data of a job may be what another job gave back
    10  the spec of a job has its begin, its deadline, and the price that it waits for; the agent
        does nothing with them
    11  the spec of a job may say that it is sensitive; the agent does nothing with it
    12  the spec of a job may say who pays for it; the agent does nothing with it
    13  the gang of a job may say that it lends its spares; the agent does nothing with it
    14  the job of an engine has that in place of a command: the agent starts it, says in the
        progress of the job what it does, and tells its service by the signal `engine`
    15  it says of an engine whether it is in use, and how often it was asked
    15  a job may have a part of each of several GPUs
    15  it says with its registration which engines run on, and ends those that are not adopted
    16  it says which environments its node has built by what jobs bring for them; the environment
        of a job has that digest
    17  the progress of a job says what of its data lacks
"""

from typing import Final

PROTOCOL: Final = 17
COUNTS_HEARTBEATS: Final = 1
"""The first whose watch, where it never had a heartbeat, was never heard."""
KNOWS_JOINED: Final = 8
"""The first that knows a rank that joined an attempt by its number."""
PREPARES: Final = 10
"""The first that brings what a job needs while it waits, fetches data from all places that a job
may name, and knows conda."""
SERVES: Final = 15
"""The first that runs engines of models, and gives shares of several GPUs."""
BUILD: Final = f"longshore-protocol-{PROTOCOL}"
"""What a worker that is no version of a deployment tells Temporal of its code.

Without it the SDK reads and hashes the code of every module at each start: 0.1 s of the processor
in an agent, 0.2 s in a control worker.
"""
