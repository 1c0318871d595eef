"""A computer that can be killed: QEMU without hardware acceleration, with Debian's kernel.

Owns the kernel, fetched once and kept below the folder of builds, the initramfs, and the life
of one QEMU at a time. That is never longer than LIFE_S, or what `start` was told: whoever waits for a guest waits no longer.
The guest sees the host's files read-only, programs included, and one folder, `share`, that it may
write to. Orders and answers go through that folder, so the host has what the guest told even if it
dies the next moment. Does not know what the guest is for: guest.sh does.
"""

import lzma
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import zlib

sys.dont_write_bytecode = True

HERE = os.path.dirname(os.path.abspath(__file__))
TOP = os.path.dirname(os.path.dirname(HERE))
E2E = os.path.join(TOP, "tests", "e2e")
sys.path.append(E2E)

from ledger_client import Failed

os.environ["PATH"] += ":/usr/sbin:/sbin"
KERNEL_PACKAGE = "linux-image-6.12-amd64"
# What the guest may need of the kernel's package; the rest would only cost time.
KERNEL_PARTS = ["./boot/vmlinuz-*", "./lib/modules/*/modules.*"] + [
    f"./lib/modules/*/kernel/{part}"
    for part in [
        "arch", "crypto", "fs", "lib", "net/9p", "net/core", "drivers/acpi", "drivers/block",
        "drivers/dax", "drivers/md", "drivers/net/net_failover*", "drivers/net/virtio_net*", "drivers/nvdimm",
    ]
]  # fmt: skip
FIRST_MODULES = ["9p", "9pnet_virtio"]
INIT = "guest-init.sh"
GUEST_MEMORY = "768M"
GUEST_PORT = 10809
TAIL_LINES = 150
DOWNLOAD_S = 300
TOOL_S = 120
LIFE_S = 300


class MachineEnded(Failed):
    """QEMU ended by itself, and the guest has told no status: it crashed or was reset."""


def target_folder():
    return os.path.abspath(os.environ.get("CARGO_TARGET_DIR", os.path.join(TOP, "target")))


def run(*command, **options):
    """Runs a tool to its end and returns what it printed."""
    options.setdefault("timeout", TOOL_S)
    try:
        done = subprocess.run(command, check=True, capture_output=True, **options)
    except (OSError, subprocess.SubprocessError) as error:
        said = getattr(error, "stderr", None) or b""
        raise Failed(f"{command[0]}: {error} {said.decode(errors='replace').strip()}") from error
    return done.stdout


def need(*tools):
    missing = [tool for tool in tools if shutil.which(tool) is None]
    if missing:
        raise Failed(f"not installed: {', '.join(missing)}")


# --- the kernel -----------------------------------------------------------------------------


def update_lists():
    """Debian's archive moves on, and then what an old list names is no longer there."""
    update = ["apt-get", "update", "-q"]
    run(*(update if os.geteuid() == 0 else ["sudo", "-n", *update]), timeout=DOWNLOAD_S)


def search(pattern, text):
    found = re.search(pattern, text.decode())
    if found is None:
        raise Failed(f"no package {KERNEL_PACKAGE} is to be had")
    return found[1]


class Kernel:
    """Debian's kernel: `files` has boot/ and lib/modules/, `image` is what QEMU starts."""

    def __init__(self):
        need("apt-get", "dpkg-deb", "tar", "depmod", "modprobe", "busybox")
        try:
            self.find()
        except Failed:
            update_lists()
            self.find()
        self.image = os.path.join(self.files, "boot", f"vmlinuz-{self.release}")

    def find(self):
        """Finds the package that KERNEL_PACKAGE stands for, and unpacks it the first time."""
        depends = run("apt-cache", "depends", "--important", KERNEL_PACKAGE)
        package = search(r"Depends: (linux-image-\S+)", depends)
        self.release = package.removeprefix("linux-image-")
        cache = os.path.join(target_folder(), "machine")
        uris = run("apt-get", "download", "--print-uris", package)
        # An unpacked kernel with other parts is another folder.
        parts = zlib.crc32(" ".join(KERNEL_PARTS).encode())
        name = search(r"' (\S+)\.deb ", uris)
        self.files = os.path.join(cache, f"{name}.{parts:08x}")
        if not os.path.isdir(self.files):
            self.unpack(cache, package)

    def unpack(self, cache, package):
        """Whole or not at all: the folder gets its name when everything is in it."""
        os.makedirs(cache, exist_ok=True)
        folder = tempfile.mkdtemp(prefix="unfinished.", dir=cache)
        try:
            run("apt-get", "download", "-q", package, cwd=folder, timeout=DOWNLOAD_S)
            deb = os.path.join(folder, os.listdir(folder)[0])
            with subprocess.Popen(["dpkg-deb", "--fsys-tarfile", deb], stdout=subprocess.PIPE) as p:
                run("tar", "-x", "-C", folder, "--wildcards", *KERNEL_PARTS, stdin=p.stdout)
            if p.returncode != 0:
                raise Failed(f"{deb} cannot be unpacked")
            os.unlink(deb)
            run("depmod", "-b", folder, self.release)
            os.chmod(folder, 0o755)
            try:
                os.rename(folder, self.files)
            except OSError:
                # Another test may have unpacked the same package meanwhile.
                if not os.path.isdir(self.files):
                    raise
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def initramfs(self, path):
        """Writes to `path` an archive with busybox, INIT as its first process, and FIRST_MODULES."""
        tree = tempfile.mkdtemp(prefix="initramfs.", dir=os.path.dirname(path))
        for folder in ["bin", "dev", "proc", "sys", "modules"]:
            os.mkdir(os.path.join(tree, folder))
        shutil.copy(shutil.which("busybox"), os.path.join(tree, "bin", "busybox"))
        for applet in run("busybox", "--list").decode().split():
            if applet != "busybox":
                os.symlink("busybox", os.path.join(tree, "bin", applet))
        shutil.copy(os.path.join(HERE, INIT), os.path.join(tree, "init"))
        os.chmod(os.path.join(tree, "init"), 0o755)
        for number, module in enumerate(self.first_modules()):
            name = os.path.basename(module).removesuffix(".xz")
            with open(module, "rb") as packed:
                code = packed.read()
            with open(os.path.join(tree, "modules", f"{number:02}-{name}"), "wb") as plain:
                plain.write(lzma.decompress(code) if module.endswith(".xz") else code)
        names = run("find", ".", cwd=tree)
        with open(path, "wb") as archive:
            archive.write(run("busybox", "cpio", "-o", "-H", "newc", cwd=tree, input=names))
        shutil.rmtree(tree)

    def first_modules(self):
        """The files of FIRST_MODULES and what they need, in the order to load them in."""
        files = []
        for module in FIRST_MODULES:
            where = ["-d", self.files, "-S", self.release]
            listing = run("modprobe", *where, "--show-depends", module).decode()
            for line in listing.splitlines():
                word, _, file = line.strip().partition(" ")
                if word == "insmod" and file not in files:
                    files.append(file)
        return files


# --- the machine ----------------------------------------------------------------------------


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def tail(path):
    try:
        with open(path, errors="replace") as file:
            lines = [line.rstrip() for line in file]
    except FileNotFoundError:
        return ""
    return "".join(f"  {line}\n" for line in lines[-TAIL_LINES:])


class Machine:
    """One QEMU at a time; its files lie in `folder`, whose name says which run they belong to."""

    def __init__(self, folder, everbyte):
        need("qemu-system-x86_64")
        self.folder, self.everbyte = folder, everbyte
        self.share = os.path.join(folder, "share")
        os.makedirs(self.share)
        self.kernel = Kernel()
        self.initramfs = os.path.join(folder, "initramfs")
        self.kernel.initramfs(self.initramfs)
        self.process = None
        self.port = None
        self.kills = 0
        self.watchdog = None
        self.killed = False
        # Says what the host sees of a guest that is late, before it is ended.
        self.look_when_late = None
        self.seen_when_late = ""

    def path(self, name):
        return os.path.join(self.folder, name)

    def start(self, task, devices, memory=GUEST_MEMORY, life_s=LIFE_S, **orders):
        """Switches it on. `devices` are QEMU's arguments; `orders` are variables of guest.sh.
        Files of `share` that the last guest wrote are gone, but for its ledger."""
        self.end()
        for name in os.listdir(self.share):
            if name != "ledger":
                os.unlink(os.path.join(self.share, name))
        orders |= {
            "TASK": task,
            "KERNEL_FILES": self.kernel.files,
            "EVERBYTE": self.everbyte,
            "TESTS": HERE,
            "E2E": E2E,
        }
        with open(os.path.join(self.share, "orders"), "w", encoding="utf-8") as file:
            file.writelines(f"{name}='{value}'\n" for name, value in orders.items())
        self.port = free_port()
        with open(self.path("qemu.log"), "wb") as log:
            command = self.command(devices, memory)
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        self.killed, self.life_s = False, life_s
        self.watchdog = threading.Timer(life_s, self.give_up)
        self.watchdog.daemon = True
        self.watchdog.start()

    def give_up(self):
        """Ends a guest that is late, after a look at what it waits for."""
        try:
            if self.look_when_late is not None:
                self.seen_when_late = self.look_when_late()
        finally:
            self.process.kill()

    def command(self, devices, memory):
        words = f"console=ttyS0 loglevel=5 panic=-1 everbyte.script={HERE}/guest.sh"
        share9p = f"local,path={self.share},mount_tag=share,security_model=none"
        host9p = "local,path=/,mount_tag=host,security_model=none,readonly=on,multidevs=remap"
        forward = f"user,id=net,hostfwd=tcp:127.0.0.1:{self.port}-:{GUEST_PORT}"
        return [
            "qemu-system-x86_64", "-nodefaults", "-no-user-config", "-display", "none",
            # One thread for both processors: with two, a kernel that patches its own code is now and
            # then run in the middle of it, and panics at boot.
            "-no-reboot", "-accel", "tcg,thread=single", "-cpu", "max", "-smp", "2",
            "-m", f"{memory},slots=2,maxmem=4G",
            "-kernel", self.kernel.image, "-initrd", self.initramfs, "-append", words,
            "-serial", f"file:{self.path('console.log')}",
            "-virtfs", host9p, "-virtfs", share9p,
            "-netdev", forward, "-device", "virtio-net-pci,netdev=net,romfile=",
            *devices,
        ]  # fmt: skip

    def told(self, name):
        """What the guest told under this name, or `None`."""
        try:
            with open(os.path.join(self.share, name), encoding="utf-8") as file:
                return file.read()
        except FileNotFoundError:
            return None

    def wait_for(self, name):
        """Waits until the guest tells `name`, and returns it."""
        while (told := self.told(name)) is None:
            if self.process.poll() is not None:
                raise self.failed(f"it ended without telling {name!r}")
            time.sleep(0.05)
        return told

    def wait_until_acknowledged(self, count):
        """Waits until fsync_writer.py has noted in the share that so many files are durable."""
        while self.acknowledged() < count:
            if self.process.poll() is not None:
                raise self.failed(f"it ended before {count} files were acknowledged")
            time.sleep(0.05)

    def acknowledged(self):
        lines = (self.told("ledger") or "").splitlines()
        return len({line.split(" ")[1] for line in lines if line.startswith("done ")})

    def finish(self):
        """Waits until the guest has done its task and switched itself off."""
        self.process.wait()
        if (self.told("status") or "").strip() != "0":
            raise self.failed("it did not do its task")

    def failed(self, what):
        """What to raise when the guest does what it should not."""
        late = "" if self.watchdog.is_alive() else f" within {self.life_s} s"
        ended = "QEMU runs" if self.process.poll() is None else f"QEMU's status is {self.process.returncode}"
        told = (self.told("status") or "none").strip()
        has_ended = told == "none" and self.process.poll() is not None and not late and not self.killed
        reason = f"the guest failed: {what}{late}; {ended}, the guest's is {told}"
        # A log that is cut keeps its end: the reason comes again after what the machine has said.
        failure = MachineEnded if has_ended else Failed
        return failure(f"{reason}\n{self.seen_when_late}{self.last_words()}--- {reason}")

    def kill(self):
        """Ends the machine as a power cut would: nothing in it runs any more."""
        if self.process is not None and self.process.poll() is None:
            self.killed = True
            self.kills += 1
            self.process.kill()

    def end(self):
        """Kills it if it still runs, and reaps it."""
        if self.process is not None:
            self.watchdog.cancel()
            self.process.kill()
            self.process.wait()
            self.process = None

    def last_words(self):
        parts = [("QEMU", "qemu.log"), ("the console", "console.log")]
        parts += [(f"the guest's {name}", f"share/{name}") for name in ("guest.log", "server.log")]
        shown = [(who, tail(self.path(name))) for who, name in parts]
        return "".join(f"--- {who}:\n{text}" for who, text in shown if text)


def scratch_folder():
    """A folder in memory that sweep.sh finds if this process cannot remove it itself."""
    mark = os.environ.get("EVERBYTE_E2E_RUN", str(os.getpid()))
    return tempfile.mkdtemp(prefix=f"everbyte-e2e.{mark}.", dir="/dev/shm")


def end_cleanly():
    """Makes the signals that end a run raise SystemExit, so that `finally` clauses run."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(1))


def find_everbyte():
    program = os.environ.get("EVERBYTE")
    if program is None:
        build = ["cargo", "build", "--quiet", "--release", "-p", "everbyte"]
        subprocess.run(build, cwd=TOP, check=True)
        program = os.path.join(target_folder(), "release", "everbyte")
    if not os.access(program, os.X_OK):
        raise Failed(f"{program} cannot be run")
    return os.path.abspath(program)
