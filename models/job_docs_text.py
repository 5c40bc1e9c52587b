"""The prose of docs/job-file.md, which `models/job_docs.py` puts around the fields."""

CODE = """\
A folder, or a commit of a Git repository: the job runs in a copy of it ([code](code.md)).
"""

DATA = """\
What the job reads, by name. Where `from` says where it is, nodes fetch it while the job waits, and
keep it for the next ([data](data.md)): the name is a file name then, letters, digits, `.`, `_` and
`-`. A URL alone is `from`, a size alone is `size`. `from: job:ID` is what another job
[gave back](data.md#files-of-another-job).
"""

PACKAGES = """\
The Python packages of the job, built once on a node ([environments](environments.md)).
"""

HEAD = """\
# The job file

A job file is YAML or JSON and describes one job: what to run, what it needs, and how patient it
is.

```console
$ longshore submit examples/hello.yaml
$ longshore submit examples/hello.yaml --set priority=8 --set env.SEED=7    # over the file's
$ longshore submit --gpus 2 --set gpu_type=H100 -- nvidia-smi -L    # without a file
$ longshore submit examples/hello.yaml --time 2h --label sweep=7    # its time limit; see --help
$ longshore schema job > job.schema.json    # JSON Schema, for completion in an editor
```

The smallest one is a name and a command; it gets one GPU of any kind:

```yaml
name: hello
command: nvidia-smi -L
```

A submit that may be repeated names a key, as in `longshore submit job.yaml --key monday`. The same
tenant, name and key return the job that exists; with other content they are refused.

A relative `workdir` counts from the folder of the job file, on the machine where you submit it.
It comes along: the job runs in a copy of it ([code](code.md)). An absolute one has to be on the
node.

**Sizes** are text with a unit, or a number of GB: `80GB`, `512MB`, `64GiB`, `80`. GB is 10^9
bytes. **Bandwidth** is a size a second, `10GB/s` or `500MB/s`; a number is GB/s. **Power** is
`700W` or `10.2kW`; a number is watts.

A flag goes before the file. Two flags that say the same field, as `--priority 8 --set
priority=8`, are refused. `--time` is `max_duration`, as Slurm writes it or as below: `90` is
minutes there.

**Prices of a GPU-hour** are in dollars: `$2.10/gpu-hour`, or `$2.10`. In a shell they need
single quotes.

**Times** are as in ISO 8601 with their zone: `2026-11-20T08:00:00Z`,
`2026-11-20 09:00+01:00`.

**Durations** are text with units, `hours:minutes[:seconds]`, or a number of seconds: `90s`,
`1h30m`, `2d`, `01:30:00`, `90`.

A job has at most 1,000,000 bytes as JSON in UTF-8, with the defaults of what it does not say: put
what is long into a file on the nodes, and name that.

YAML is read as its version 1.2 means it: `no` is text. Anchors,
tags and fields that nobody knows are refused.

This page is made from the models by `make docs`.
"""

FIELDS = """\
Only `name` and one of `command` and `image` are required. A FAST job runs on nodes of the tier
FAST, a FLEX job on nodes of the tier FLEX. For a job that no node can hold a pool buys nodes where
its policy allows that ([buying](buying.md)); else it waits, and `longshore why` says what is
missing.
"""

ARRAY = """\
Runs the command once for each index or row. [Arrays](arrays.md) explains it with examples. A text
alone is the indices with their limit, as in `array: 0-99%8`, or the name of a table, as in
`array: params.csv%8`.
"""

GANG = """\
Lets a job span nodes. [Topology and gangs](topology.md) explains it with examples; without `gang`
all GPUs of a job are on one node.
"""

MALLEABLE = """\
The sizes of a job that can run on fewer or more GPUs. [Elastic jobs](elastic.md) explains it with
examples; without `malleable` a job runs on exactly `gpus`.
"""

CHECKPOINT = """\
How the job saves and goes on. [Checkpoints](checkpoints.md) explains it with examples.
`interval` says that the job saves by itself: in a pool by rank it then counts as one that can be
stopped ([queue](queue.md)).
"""

RETRY = """\
A rule for each class of failure that a retry can help. What is not named keeps its default. A job
that was held, or had to leave its node, has not failed: it uses up no retry and keeps its place.
"""

RULE = """\
The wait before retry n is `backoff` x `multiplier`^(n - 1), and at most `max_backoff`.
"""

CLASSES = """\
## Classes of failure

Every attempt without success gets one of these; those that `retry` names may be tried again.
"""

STATES = """\
## States of a job

`longshore jobs` and `longshore job` show them.
"""

ENVIRONMENT = """\
## What the process finds

It runs in `workdir`, or in an empty folder of the job's own that stays the same between attempts
on one node; with `code`, in its copy of that. Of the agent's environment it gets what programs
need everywhere (`PATH`, `HOME`, `LANG`, proxies and the like) and no secret. On `PATH` is nothing
of the Python environment that the agent runs in. Then come `env`, and these, which `env` cannot
change. Those with `LONGSHORE_` it cannot set either, where the job has none:

| variable | what |
|---|---|
| `CUDA_VISIBLE_DEVICES` | the job's GPUs or MIG instance, by UUID; on simulated nodes by index |
| `CUDA_DEVICE_ORDER` | `PCI_BUS_ID` |
| `LONGSHORE_JOB_ID`, `LONGSHORE_JOB_NAME` | id and name |
| `LONGSHORE_ATTEMPT` | number of this attempt, from 1 |
| `LONGSHORE_NODE_ID` | the node that it runs on |
| `LONGSHORE_GPU_INDICES`, `LONGSHORE_GPU_COUNT` | its GPUs by index, `2,3`, and how many |
| `LONGSHORE_GPUS` | with `malleable`: the GPUs of this attempt on all nodes, its size |
| `LONGSHORE_GPUS_BEFORE` | with `malleable`: the size before this attempt, or before it joined |
| `LONGSHORE_GPUS_MIN`, `LONGSHORE_GPUS_MAX` | with `malleable`: its smallest and largest size |
| `LONGSHORE_RESIZE_FILE` | with `in_place`: the file that says the size once it has changed |
| `LONGSHORE_RANKS` | with `in_place`: the numbers of the ranks that are there, `0,1,3` |
| `LONGSHORE_GPU_MILLI`, `LONGSHORE_GPU_VRAM` | with `milli`: thousandths and GB of each GPU |
| `CUDA_MPS_ACTIVE_THREAD_PERCENTAGE` | with `milli`: for CUDA's MPS ([sharing](sharing.md)) |
| `CUDA_MPS_PINNED_DEVICE_MEM_LIMIT` | with `milli`: the memory of each GPU, for CUDA's MPS |
| `LONGSHORE_MIG_PROFILE` | with `mig`: the profile |
| `LONGSHORE_TENANT`, `LONGSHORE_POOL` | as in the file |
| `LONGSHORE_PROGRESS_FILE` | where to write how far it is ([progress](progress.md)) |
| `LONGSHORE_OUTPUT` | where to write JSON for jobs behind it ([DAGs](dags.md#outputs)) |
| `LONGSHORE_CHECKPOINT_DIR` | the checkpoint folder, made already; only with `checkpoint` |
| `LONGSHORE_SAVED` | where to add the line `saved, step N` after saving; only with `checkpoint` |
| `LONGSHORE_SAVE_REQUEST` | a file that appears when the job is to save; only with `save_file` |
| `LONGSHORE_DATA_DIR` | a folder with an entry for each data set; only with `from` |
| `LONGSHORE_DATA_<NAME>` | the path of one: `LONGSHORE_DATA_IMAGENET_1K` of `imagenet-1k` |
| `LONGSHORE_DATA_MISSING` | what of its data could not be had; only where something lacks |
| `LONGSHORE_CODE_DIR` | the folder of its code; only with `code` |
| `VIRTUAL_ENV` | its Python environment, first on `PATH` too; only with `environment` |
| `LONGSHORE_RESUME` | `1` where the folder holds a checkpoint to go on from |
| `LONGSHORE_CHECKPOINT_STEP` | its step, where the job has told one |
| `LONGSHORE_ARRAY_ID`, `LONGSHORE_ARRAY_INDEX` | of an element ([arrays](arrays.md)) |
| `LONGSHORE_ARRAY_COUNT` | how many elements its array has |
| `LONGSHORE_ARRAY_MIN`, `LONGSHORE_ARRAY_MAX` | the lowest and the highest index |
| `LONGSHORE_ELEMENT_ATTEMPT` | of an element: the number of its attempt, from 1 |
| `LONGSHORE_NODE_EXPIRES_AT` | when the node ends; only where it does |
| `LONGSHORE_SIMULATED_GPUS` | `1` where the GPUs are simulated |
| `LONGSHORE_AGENT_ID` | marks the process as the agent's; not for the job |
"""

WRONG = """\
## When a file is wrong

All mistakes come at once, with file, line and field; the exit code is 65, and nothing is
submitted. For this `job.yaml`

<!-- file: job.yaml -->
"""

ERRORS = """\
## Errors

The command line prints one line and ends with the code of the error; in Python they are exceptions
of `longshore.models.errors`. With `--wait` the exit code is the job's own where it failed, 130
where it was cancelled, 75 where its queue timeout passed, 124 where its time limit did, 70 for
other failures. A wrong command line, as one with an unknown option, ends with 2; `buy` and
`preempt` without `--dry-run` end with 64, and do nothing.
`LONGSHORE_DEBUG=1` shows where an error comes from.
"""

FULL = """\
## A full example

Nearly every field; `array`, `engine`, `environment` and `sensitive` exclude others. Most jobs need
a handful.
"""
