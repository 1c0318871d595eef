#!/usr/bin/python3
"""The package in a booted guest with systemd: service-guest.sh starts, kills, upgrades and purges the services.

Usage: service.py PACKAGE [SUITE], with the file everbyte_*.deb and Debian's suite, bookworm by default. Needs root,
mmdebstrap and the tools of machine.py.
"""

import os
import shutil
import subprocess
import sys

sys.dont_write_bytecode = True

import machine
from machine import HERE, Failed, Kernel, end_cleanly, need, run, scratch_folder, tail

LIFE_S = 400
MODULES = ["virtio_blk", "ext4", "fuse", "9p", "9pnet_virtio"]
INCLUDED = "systemd,systemd-sysv,dbus,libnbd-bin,fuse3,procps"
UNIT = """[Service]
Type=oneshot
ExecStart=/srv/service-guest.sh
[Install]
WantedBy=multi-user.target
"""
# Without udev, the wait for a console never ends.
KERNEL_WORDS = (
    "console=ttyS0 loglevel=4 panic=-1 systemd.show_status=no systemd.mask=serial-getty@ttyS0.service"
    " systemd.mask=getty.target"
)


def make_disk(folder, package, suite):
    """Debian with the package and the checks as the file of an ext4 file system."""
    system, disk = os.path.join(folder, "system"), os.path.join(folder, "disk")
    form = ["--format", "$(REPO_URI)", "Created-By: Packages"]
    sites = run("apt-get", "indextargets", *form).decode().split()
    mirror = next(site for site in sites if site.rstrip("/").endswith("/debian"))
    run("mmdebstrap", "--quiet", "--variant=minbase", f"--include={INCLUDED}", suite, system, mirror, timeout=300)
    shutil.copy(package, os.path.join(system, "srv", "everbyte.deb"))
    shutil.copy(os.path.join(HERE, "service-guest.sh"), os.path.join(system, "srv"))
    with open(os.path.join(system, "etc/systemd/system/check.service"), "w", encoding="utf-8") as unit:
        unit.write(UNIT)
    run("chroot", system, "dpkg", "-i", "/srv/everbyte.deb")
    run("systemctl", "--root", system, "enable", "check.service")
    run("mkfs.ext4", "-q", "-O", "^has_journal", "-d", system, disk, "1G", timeout=300)
    shutil.rmtree(system)
    return disk


def main():
    package, suite = sys.argv[1], (sys.argv[2:] or ["bookworm"])[0]
    need("qemu-system-x86_64", "mmdebstrap", "mkfs.ext4")
    end_cleanly()
    machine.FIRST_MODULES, machine.INIT = MODULES, "service-init.sh"
    folder = scratch_folder()
    try:
        share = os.path.join(folder, "share")
        os.mkdir(share)
        kernel, initramfs = Kernel(), os.path.join(folder, "initramfs")
        kernel.initramfs(initramfs)
        disk = make_disk(folder, package, suite)
        command = [
            "qemu-system-x86_64", "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
            "-accel", "tcg,thread=single", "-cpu", "max", "-smp", "2", "-m", "768M",
            "-kernel", kernel.image, "-initrd", initramfs, "-append", KERNEL_WORDS,
            "-serial", f"file:{folder}/console", "-drive", f"file={disk},format=raw,if=virtio,cache=unsafe",
            "-virtfs", f"local,path={share},mount_tag=share,security_model=none",
        ]  # fmt: skip
        try:
            subprocess.run(command, stdin=subprocess.DEVNULL, timeout=LIFE_S, check=True)
        except subprocess.SubprocessError as error:
            print(f"FAILED - service: the guest: {error}")
        output = tail(os.path.join(share, "output"))
        print(output.replace("  ok - service", f"ok - service: {suite}").strip("\n"))
        if tail(os.path.join(share, "status")).strip() != "0":
            raise Failed(f"the checks failed\n--- the console:\n{tail(f'{folder}/console')}")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    try:
        main()
    except Failed as error:
        sys.exit(f"FAILED - service: {error}")
