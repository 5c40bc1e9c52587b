"""Job files that the page about them shows."""

FULL_EXAMPLE = """\
name: train-7b
tenant: research
pool: default
tier: FAST
priority: 7
labels: {sweep: 7, team: vision}

gpus: 16
gpu_type: H100
vram_per_gpu: 40GB
milli: 1000
mig: null
cpus: 64
ram: 512GB
storage_bandwidth: 4GB/s
power_per_gpu: 500W
expected_duration: 2h30m
max_duration: 6h
gang:
  group_gpus: 8
  allow_cross_group_spread: true
  processes: node
  spares_per_group: 8
  spares_required: true
  lend_spares: true
  same_conformance: require
  unlabelled_nodes: false
malleable: {min: 8, max: 32, step: 8, desired: 24, serial_fraction: 0.02, in_place: false}
data:
  imagenet: {from: "s3://research/imagenet/", size: 150GB, start_at: 80%, sticky: true}
  tokenizer: 10MB
conformance: {known: true, allowed: [1f0e6b2c9d4a7e35]}
constraints: [zone=a, rack!=r7, "switch in (s1, s2)", ib]

command: [python, train.py, --epochs, "3"]
image: ghcr.io/example/train:1.4
env:
  SEED: 7
  WANDB_MODE: offline
code: {git: "https://git.example.com/research/train", ref: v1.2}
workdir: src
outputs: [results, "*.pt"]

checkpoint:
  folder: checkpoints
  signal: SIGUSR1
  grace: 2m
  interval: 15m
  save_signal: SIGUSR2
  save_file: true
  store: true
  keep: 3
retry:
  user: {max_retries: 1, backoff: 30s, multiplier: 2, max_backoff: 10m}
  start: {max_retries: 1, backoff: 1m}
  out_of_memory: {max_retries: 0}
  node: {max_retries: 10, backoff: 1s}
  network: {max_retries: null, backoff: 5s}
  preempted: {max_retries: null}
  time_limit: {max_retries: 2}
preemptible: false
funding: {allow_borrow: true, max_borrow: 8, sponsors: [vision], unfunded: wait}
begin: "2026-11-20T20:00:00Z"
deadline: "2026-11-22T08:00:00Z"
start_below: $2.10/gpu-hour
queue_timeout: 12h
stop_grace: 20s
"""
"""Nearly every field, once; where the examples of single fields come from, too."""

OF_OTHERS: dict[str, int | str | bool] = {"milli": 500, "mig": "1g.10gb", "sensitive": True}
"""Examples that cannot stand beside a gang, or beside sizes."""

WRONG_EXAMPLE = """\
name: Train 7B
gpus: 0
gups: 4
vram_per_gpu: lots
expected_duration: -1h
retry:
  user: {max_retry: 3}
"""
