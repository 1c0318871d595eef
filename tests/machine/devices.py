#!/usr/bin/python3
"""Caches of partitions, device-mapper and loop devices in a guest: containers often have no kernel for these.

Devices that share bytes are the backing devices of one cache only, devices that do not are those of several, and caches of
write-protected devices are read-only.

usage: devices.py
"""

import shutil
import sys

sys.dont_write_bytecode = True

from machine import Failed, Machine, end_cleanly, find_everbyte, need, scratch_folder

DISK_BYTES = 64 << 20
TOLD = ("partitions", "volumes", "protected")


def disk(machine, name, *options):
    path = machine.path(name)
    with open(path, "wb") as file:
        file.truncate(DISK_BYTES)
    drive = ",".join([f"file={path},if=none,format=raw,id={name}", *options])
    return ["-drive", drive, "-device", f"virtio-blk-pci,drive={name}"]


def main():
    end_cleanly()
    folder, machine = scratch_folder(), None
    try:
        need("dmsetup", "losetup", "blockdev")
        machine = Machine(folder, find_everbyte())
        disks = disk(machine, "first") + disk(machine, "second", "readonly=on")
        machine.start("try_device_stacks", ["-machine", "q35", *disks])
        machine.finish()
        missing = [name for name in TOLD if machine.told(name) is None]
        if missing:
            raise machine.failed(f"it has not told {missing}")
        print("ok - machine-devices: devices that share bytes are found, and write-protected ones")
    except Failed as failure:
        print(f"FAILED - machine-devices: {failure}", file=sys.stderr)
        return 1
    finally:
        if machine is not None:
            machine.end()
        shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
