#!/usr/bin/python3
"""Guests with a disk of our server by vhost-user-blk, and by the NBD client of QEMU.

Each guest has two queues, and checks the properties of its disk. ext4, XFS and NTFS are made, filled, trimmed, found
again and grown, with and without a volatile write cache. Then the server is killed again and again in one life of a
guest that writes, once with each protocol: no request may fail, and what fsync acknowledged must be found.

usage: vhost.py ROUNDS [--small N] [--large-mib N]

ROUNDS                  kills of the server in one life of a guest
--small, --large-mib    how much the file systems are filled with, see fill_tree.py
"""

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import time

sys.dont_write_bytecode = True

from machine import GUEST_MEMORY, Failed, Machine, MachineEnded, end_cleanly, find_everbyte, need, run, scratch_folder, tail

READY_S = 20
WRITING_S = (0.5, 4.0)
# (kernel module, with a volatile cache)
FILE_SYSTEMS = [("ext4", False), ("xfs", True), ("ntfs3", False)]
IDLE_S = 20
# An idle server's processor time, for a minute and in seconds.
IDLE_MAX_S = 0.010


class Server:
    """`everbyte serve` of one volume, by vhost-user-blk and by NBD."""

    def __init__(self, program, folder):
        self.program, self.pool = program, f"{folder}/pool"
        self.socket, self.log = f"{folder}/vhost.sock", f"{folder}/host-server.log"
        self.process, self.nbd = None, f"{folder}/nbd.sock"
        run(program, "pool", "create", self.pool, "--size", "1536M")

    def start(self, volume, *options):
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                [self.program, "serve", self.pool, "--vhost", f"{volume}={self.socket}", "--nbd", f"unix:{self.nbd}", *options],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
            )
        line = self.process.stdout.readline().decode()
        if not line.startswith("ready: "):
            raise Failed(f"the server did not become ready\n{tail(self.log)}")

    def processor_s(self):
        with open(f"/proc/{self.process.pid}/stat", encoding="ascii") as file:
            fields = file.read().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def stop(self):
        self.process.terminate()
        if self.process.wait(READY_S) != 0:
            raise Failed(f"the server ended with status {self.process.returncode}\n{tail(self.log)}")
        self.kill()

    def kill(self):
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process.stdout.close()
            self.process = None


def devices(server):
    return [
        "-machine", "q35,memory-backend=memory",
        "-object", f"memory-backend-memfd,id=memory,size={GUEST_MEMORY},share=on",
        "-chardev", f"socket,id=disk,path={server.socket},reconnect=1",
        "-device", "vhost-user-blk-pci,chardev=disk,num-queues=2",
    ]  # fmt: skip


def nbd_devices(server):
    """The disk by QEMU's NBD client. It sends the requests again once the server is back."""
    return [
        "-blockdev", f"nbd,node-name=disk,server.type=unix,server.path={server.nbd},export=killed,reconnect-delay=60",
        "-device", "virtio-blk-pci,drive=disk,num-queues=2,serial=killed",
    ]  # fmt: skip


def orders(volume, write_back):
    return {"VOLUME": volume, "CACHE": "write back" if write_back else "write through"}


def try_file_system(machine, server, module, write_back, options):
    run(server.program, "volume", "create", server.pool, module, "--size", "384M")
    server.start(module, *(["--write-back"] if write_back else []))
    machine.start(
        "try_vhost",
        devices(server),
        FS_MODULE=module,
        SMALL_FILES=options.small,
        LARGE_MIB=options.large_mib,
        **orders(module, write_back),
    )
    machine.wait_for("ready")
    run(server.program, "volume", "resize", server.pool, module, "--size", "400M")
    machine.finish()
    server.stop()
    cache = "write back" if write_back else "write through"
    files = machine.told("files").strip()
    print(f"ok - machine-vhost: {module} with {cache}: {files} files found again, trimmed and grown")


def clients(server):
    return json.loads(run(server.program, "client", "list", server.pool, "--json"))["clients"]


def disconnect(machine, server):
    """Disconnects a guest that writes. It connects again, and no request fails."""
    machine.wait_until_acknowledged(1)
    (client,) = clients(server)
    if client["export"] != "killed" or machine.folder not in client["address"] or client["written_bytes"] == 0:
        raise Failed(f"the guest is listed as {client}")
    run(server.program, "client", "disconnect", server.pool, str(client["id"]))
    machine.wait_until_acknowledged(machine.acknowledged() + 1)
    (again,) = clients(server)
    if again["id"] == client["id"]:
        raise Failed("the guest was not disconnected")
    print("ok - machine-vhost: a disconnected guest connects again")


def kill_rounds(machine, server, rounds, rng, devices_of, protocol):
    with open(machine.path("share/ledger"), "w", encoding="ascii"):
        pass
    server.start("killed")
    # QEMU's own disk has a volatile cache.
    write_back = devices_of is nbd_devices
    machine.start("write_while_server_dies", devices_of(server), **orders("killed", write_back))
    machine.wait_for("ready")
    disconnect(machine, server)
    for _ in range(rounds):
        before = machine.acknowledged()
        time.sleep(rng.uniform(*WRITING_S))
        machine.wait_until_acknowledged(before + 1)
        server.kill()
        server.start("killed")
    machine.wait_until_acknowledged(machine.acknowledged() + 1)
    with open(machine.path("share/enough"), "w", encoding="ascii"):
        pass
    machine.finish()
    print(
        f"ok - machine-vhost: {rounds} kills of the server under ext4 by {protocol}: no request failed, and "
        f"{machine.told('verified').strip()} acknowledged files were intact"
    )
    server.stop()


def idle_server(server):
    server.start("killed")
    before = server.processor_s()
    time.sleep(IDLE_S)
    used = server.processor_s() - before
    server.stop()
    if used > IDLE_MAX_S * IDLE_S / 60 + 1 / os.sysconf("SC_CLK_TCK"):
        raise Failed(f"an idle server used {used} s of processor time in {IDLE_S} s")
    print("ok - machine-vhost: an idle server uses no processor time")


def main():
    parser = argparse.ArgumentParser(description="guests with a disk by vhost-user-blk")
    parser.add_argument("rounds", type=int)
    parser.add_argument("--small", type=int, default=100)
    parser.add_argument("--large-mib", type=int, default=4)
    options = parser.parse_args()
    end_cleanly()
    folder, machine, server = scratch_folder(), None, None
    try:
        need("mkfs.ext4", "e2fsck", "resize2fs", "mkfs.xfs", "xfs_growfs", "mkfs.ntfs", "fstrim")
        program = find_everbyte()
        machine, server = Machine(folder, program), Server(program, folder)
        for module, write_back in FILE_SYSTEMS:
            try_file_system(machine, server, module, write_back, options)
        if options.rounds:
            run(program, "volume", "create", server.pool, "killed", "--size", "256M")
            for devices_of, protocol in ((devices, "vhost-user-blk"), (nbd_devices, "NBD")):
                rounds = (options.rounds, random.Random(), devices_of, protocol)
                try:
                    kill_rounds(machine, server, *rounds)
                except MachineEnded as ended:
                    # Now and then emulation without KVM resets a guest. A fault of the server repeats itself.
                    print(f"the guest is started again: {ended}", file=sys.stderr)
                    server.kill()
                    kill_rounds(machine, server, *rounds)
            idle_server(server)
        run(program, "pool", "check", server.pool)
        print("ok - machine-vhost: the pool is clean after all of it")
    except Failed as failure:
        print(f"FAILED - machine-vhost: {failure}", file=sys.stderr)
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
