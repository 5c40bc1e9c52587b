"""The processes of a gang meet: rank 0 waits for the others, and all say hello to each other.

What torchrun or MPI do at their start, from the standard library alone. Everything comes from the
variables that Longshore sets: RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT.
"""

import argparse
import os
import socket
import sys
import time

PATIENCE = 30.0


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--seconds", type=float, default=0.0, help="go on for so long after")
    seconds: float = arguments.parse_args().seconds
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    where = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    me = f"{os.environ['LONGSHORE_NODE_ID']}:{os.environ['LONGSHORE_GPU_COUNT']}"
    try:
        everybody = gather(where, world, me) if rank == 0 else join(where, me)
    except OSError as error:
        print(f"rank {rank} of {world} met nobody at {where[0]}:{where[1]}: {error}", flush=True)
        return 1
    nodes = [name.partition(":")[0] for name in everybody]
    gpus = sum(int(name.partition(":")[2]) for name in everybody)
    time.sleep(seconds)
    print(f"all {world} ranks met: {gpus} GPUs on {' and '.join(nodes)}", flush=True)
    return 0


def gather(where: tuple[str, int], world: int, me: str) -> list[str]:
    """Wait for the other ranks, and tell each of them who is there."""
    everybody, guests = [me], []
    with socket.create_server(where) as door:
        door.settimeout(PATIENCE)
        while len(everybody) < world:
            guest, _ = door.accept()
            guest.settimeout(PATIENCE)
            everybody.append(guest.makefile().readline().strip())
            guests.append(guest)
        for guest in guests:
            guest.sendall((" ".join(everybody) + "\n").encode())
            guest.close()
    return everybody


def join(where: tuple[str, int], me: str) -> list[str]:
    """Call rank 0 until it answers."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            with socket.create_connection(where, timeout=PATIENCE) as host:
                host.sendall(f"{me}\n".encode())
                return host.makefile().readline().split()
        except ConnectionError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)  # rank 0 is not there yet


if __name__ == "__main__":
    sys.exit(main())
