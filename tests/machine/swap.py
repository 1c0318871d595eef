#!/usr/bin/python3
"""Swap of a guest on a swap volume that the host exports.

The guest uses twice its memory and finds every byte again. Then guests are killed in the midst of it:
the volume is free at once, the next guest has it from its first block on, and other volumes of the
pool are as they were. With --compare the same guest also swaps on nbdkit's memory and on qemu-nbd, in turns,
and the rates are told: they are not judged, for they depend on the machine.

usage: swap.py KILLS [--memory-mib N] [--passes N] [--compare ROUNDS]
"""

import argparse
import json
import random
import shutil
import socket
import statistics
import subprocess
import sys
import time

sys.dont_write_bytecode = True

from host_server import Server
from machine import Failed, Machine, end_cleanly, find_everbyte, free_port, need, run, scratch_folder, tail

GUEST_MIB = 256
FREE_S = 20
DISK_MIB = 8
READY_S = 20
SWAPPING_S = (0.5, 5.0)
# Each page goes out and comes back by emulation alone.
LIFE_S = 900
# Of a connection, in /proc/net/tcp.
ESTABLISHED = "01"


def swap_status(server):
    listed = json.loads(run(server.program, "volume", "list", server.pool, "--json"))
    return next(volume for volume in listed["volumes"] if volume["name"] == "more")


def wait_until_free(server):
    """Waits until nobody has the volume: the server must notice by itself that a guest is gone."""
    deadline = time.monotonic() + FREE_S
    while (status := swap_status(server))["swap"]["lent_bytes"] or status["clients"]:
        if time.monotonic() > deadline:
            raise Failed(f"a killed guest still has the volume: {status}")
        time.sleep(0.05)


def boot(machine, port, options, passes):
    machine.start(
        "swap_over_nbd",
        ["-machine", "q35"],
        memory=f"{GUEST_MIB}M",
        life_s=LIFE_S,
        NBD_PORT=port,
        NBD_VOLUME="more",
        MEMORY_MIB=options.memory_mib,
        PASSES=passes,
    )


def fill(machine, port, options):
    """A guest that uses all of it, to the end."""
    boot(machine, port, options, options.passes)
    machine.finish()
    out, back, milliseconds = map(int, machine.told("filled").split())
    missing = (options.memory_mib - GUEST_MIB) * 256
    if min(out, back) < missing:
        raise Failed(f"{out} pages went out and {back} came in, not {missing} of each")
    return out, back, milliseconds


def connections(port):
    """A line of each connection of a server: the bytes sent that the guest has not taken, and those come that
    the server has not read."""
    with open("/proc/net/tcp", encoding="ascii") as file:
        rows = [line.split() for line in file.readlines()[1:]]
    at = f":{int(port):04X}"
    lines = ""
    for row in rows:
        if row[1].endswith(at) and row[3] == ESTABLISHED:
            sent, come = (int(queue, 16) for queue in row[4].split(":"))
            lines += f"the server's connection: {sent} bytes not taken, {come} not read\n"
    return lines


class Rival:
    """Another program's server of an empty disk."""

    def __init__(self, name, command):
        self.name, self.port = name, free_port()
        self.process = subprocess.Popen([word.format(port=self.port) for word in command])
        deadline = time.monotonic() + READY_S
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port)).close()
                return
            except OSError:
                if time.monotonic() > deadline or self.process.poll() is not None:
                    self.kill()
                    raise Failed(f"{name} does not answer") from None
                time.sleep(0.05)

    def kill(self):
        self.process.kill()
        self.process.wait()


def compare(machine, port, folder, options):
    """The time that the guest's passes take on each server, in turns; returns our rate by each rival's."""
    mib, disk = options.memory_mib + 64, f"{folder}/rival"
    with open(disk, "wb") as file:
        file.truncate(mib << 20)
    commands = {
        "nbdkit memory": ["nbdkit", "-f", "-i", "127.0.0.1", "-p", "{port}", "memory", f"{mib}M"],
        "qemu-nbd": ["qemu-nbd", "-f", "raw", "-b", "127.0.0.1", "-p", "{port}", "-t", "-e", "4", "-x", "more", disk],
    }
    rivals = []
    try:
        for name, command in commands.items():
            rivals.append(Rival(name, command))
        ports = {"ours": port} | {rival.name: rival.port for rival in rivals}
        times = {name: [] for name in ports}
        for _ in range(options.compare):
            for name, at in ports.items():
                times[name].append(fill(machine, at, options)[2])
                print(f"{name}: {times[name][-1]} ms", flush=True)
    finally:
        for rival in rivals:
            rival.kill()
    ours = statistics.median(times.pop("ours"))
    return {name: statistics.median(rival) / ours for name, rival in times.items()}


def kill_rounds(machine, server, port, options):
    for at in range(1, options.kills + 1):
        boot(machine, port, options, 0)
        machine.wait_for("swapping")
        time.sleep(random.uniform(*SWAPPING_S))
        if machine.process.poll() is not None:
            raise machine.failed("it ended before it was killed")
        if swap_status(server)["clients"] != 1:
            raise Failed("the guest has no connection")
        machine.kill()
        machine.end()
        wait_until_free(server)
        print(f"round {at}: the volume is free", flush=True)


def arguments():
    parser = argparse.ArgumentParser(description="swap of a guest over NBD")
    parser.add_argument("kills", type=int)
    parser.add_argument("--memory-mib", type=int, default=2 * GUEST_MIB)
    parser.add_argument("--passes", type=int, default=1)
    parser.add_argument("--compare", type=int, default=0)
    return parser.parse_args()


def main():
    options = arguments()
    end_cleanly()
    folder, machine, server = scratch_folder(), None, None
    try:
        need("nbd-client", "nbdcopy", "mkswap", "swapon")
        program = find_everbyte()
        machine = Machine(folder, program)
        server = Server(program, folder, f"{options.memory_mib + 160}M")
        server.create("more", "--kind", "swap", "--size", f"{options.memory_mib + 64}M")
        server.create("disk", "--size", f"{DISK_MIB}M")
        port = server.start()
        machine.look_when_late = lambda: connections(port) + tail(server.log)
        disk, bytes_before = f"nbd://127.0.0.1:{port}/disk", random.randbytes(DISK_MIB << 20)
        run("nbdcopy", "--", "-", disk, input=bytes_before)
        out, back, _ = fill(machine, port, options)
        wait_until_free(server)
        print(
            f"ok - machine-swap: a guest of {GUEST_MIB} MiB finds {options.memory_mib} MiB again: {out} "
            f"pages went out, {back} came in"
        )
        kill_rounds(machine, server, port, options)
        if options.kills:
            fill(machine, port, options)
            wait_until_free(server)
        if options.compare:
            need("nbdkit", "qemu-nbd")
            rates = compare(machine, port, folder, options)
            told = ", ".join(f"{rate:.2f}x of {name}'s" for name, rate in rates.items())
            print(f"told - machine-swap: the rate of a guest's passes is {told}, medians of {options.compare}")
            wait_until_free(server)
        if run("nbdcopy", disk, "-") != bytes_before:
            raise Failed("another volume changed")
        server.stop()
        run(program, "pool", "check", server.pool)
        print(
            f"ok - machine-swap: {options.kills} guests killed; the volume was free each time, and the "
            "pool is clean after all of it"
        )
    except Failed as failure:
        print(f"FAILED - machine-swap: {failure}", file=sys.stderr)
        return 1
    finally:
        if machine is not None:
            machine.end()
        if server is not None:
            server.kill()
        shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
