"""A client that writes at random and keeps the ledger, for every test that kills what serves it.

Owns the mixture of requests: sizes, alignment, trims, zeroes, FUA and FLUSH over two connections
with many in flight, never two on one block. Does not know what is killed nor how.
"""

import threading
import time

import nbd

from ledger import BLOCK, SECTOR, judge, planted, stamped

LEAF = 2 << 20
IN_FLIGHT_MAX = 16
HOT_BLOCKS = 256
ENOSPC = 28


class Failed(Exception):
    """A promise was broken."""


class Client:
    """Random requests over two connections, noted in the ledger. Only of a pool that is tight may one be
    refused for lack of space."""

    def __init__(self, ledger, rng, uri, first_number, is_tight=False):
        self.ledger, self.rng, self.is_tight = ledger, rng, is_tight
        self.number = first_number
        self.busy = set()
        self.failure = None
        self.aim = threading.Event()
        self.flush_share = rng.choice([0.0, 0.001, 0.01, 0.05])
        self.fua_share = rng.choice([0.0, 0.03, 0.2])
        self.fua_blocks_max = rng.choice([1, LEAF // BLOCK])
        self.counts = {"answered": 0, "durable": 0, "refused": 0, "flushes": 0, "reads": 0}
        self.connections = []
        for _ in range(2):
            connection = nbd.NBD()
            connection.set_strict_mode(0)
            connection.connect_uri(uri)
            self.connections.append(connection)
        if not self.connections[0].can_multi_conn():
            raise Failed("the server does not allow several connections")

    def run(self, shoot):
        """Until the connections die. Once `aim` is set, calls `shoot` while requests are sent."""
        while not any(c.aio_is_dead() or c.aio_is_closed() for c in self.connections):
            if self.failure is not None:
                raise Failed(self.failure)
            try:
                if self.aim.is_set():
                    self.send_and(shoot)
                for connection in self.connections:
                    while connection.aio_in_flight() < IN_FLIGHT_MAX // 2:
                        self.send(connection)
                    connection.poll(1)
            except nbd.Error:
                pass
        if self.failure is not None:
            raise Failed(self.failure)

    def send_and(self, shoot):
        """Kills the server while it works on a write of many blocks. How long such a write takes
        is measured first."""
        connection = self.connections[0]
        while self.busy:
            for other in self.connections:
                other.poll(1)
        length = self.rng.randrange(8 * BLOCK, 64 * BLOCK, SECTOR)
        offset = self.rng.randrange(0, LEAF - length, SECTOR)
        blocks = range(offset // BLOCK, (offset + length - 1) // BLOCK + 1)
        self.change(connection, offset, length, blocks)
        started = time.perf_counter()
        while self.busy:
            connection.poll(-1)
        took = time.perf_counter() - started
        self.change(connection, offset, length, blocks)
        until = time.perf_counter() + self.rng.uniform(0.0, took)
        while time.perf_counter() < until:
            connection.poll(0)
        shoot()

    def send(self, connection):
        roll = self.rng.random()
        if roll < self.flush_share:
            self.flush(connection)
            return
        offset, length = self.place()
        blocks = range(offset // BLOCK, (offset + length - 1) // BLOCK + 1)
        if any(block in self.busy for block in blocks):
            return
        if roll < self.flush_share + 0.07:
            self.read(connection, offset, length, blocks)
        else:
            self.change(connection, offset, length, blocks)

    def place(self):
        """A range: most in a few hot blocks, some not aligned, never across 2 MiB."""
        rng = self.rng
        blocks = HOT_BLOCKS if rng.random() < 0.7 else self.ledger.size // BLOCK
        offset = rng.randrange(blocks) * BLOCK
        shape = rng.random()
        if shape < 0.4:
            length = BLOCK
        elif shape < 0.6:
            length = rng.choice([512, 1024, 2048])
            offset += rng.randrange(0, BLOCK, 512)
        elif shape < 0.8:
            length = rng.randrange(1, 17) * BLOCK
        elif shape < 0.9:
            offset += rng.randrange(BLOCK)
            length = rng.randrange(1, 300)
        elif shape < 0.99:
            offset += rng.randrange(0, BLOCK, 512)
            length = rng.randrange(512, 65537, 512)
        elif shape < 0.998:
            offset += rng.randrange(0, BLOCK, 512)
            length = rng.randrange(65536, LEAF, 512)
        else:
            offset -= offset % LEAF
            length = LEAF
        return offset, min(length, LEAF - offset % LEAF)

    def change(self, connection, offset, length, blocks):
        rng, self.number = self.rng, self.number + 1
        roll = rng.random()
        kind = "trim" if roll < 0.06 else "zero" if roll < 0.12 else "write"
        fua = len(blocks) <= self.fua_blocks_max and rng.random() < self.fua_share
        flags = nbd.CMD_FLAG_FUA if fua else 0
        data = None
        if length == LEAF and kind == "write":
            kind = "trim"
        if kind == "write":
            data = self.bytes_for(offset, length)
        request = self.ledger.issue(self.number, kind, offset, length, data, fua)
        self.busy.update(blocks)

        def completed(error):
            self.busy.difference_update(blocks)
            if error.value == 0:
                self.ledger.answer(request)
                self.counts["answered"] += 1
                self.counts["durable"] += request.fua
            elif error.value == ENOSPC and self.is_tight:
                self.ledger.refuse(request)
                self.counts["refused"] += 1
            elif not self.is_lost(connection, error):
                self.failure = f"{request} failed with error {error.value}"
            return 1

        if kind == "write":
            buffer = nbd.Buffer.from_bytearray(bytearray(data))
            connection.aio_pwrite(buffer, offset, completed, flags)
        elif kind == "trim":
            connection.aio_trim(length, offset, completed, flags)
        else:
            flags |= nbd.CMD_FLAG_NO_HOLE if rng.random() < 0.3 else 0
            connection.aio_zero(length, offset, completed, flags)

    def bytes_for(self, offset, length):
        """New bytes: mostly random, sometimes what is there already with little changed."""
        roll = self.rng.random()
        if roll < 0.7:
            return stamped(self.rng, self.number, offset, length)
        data = bytearray(self.ledger.image[offset : offset + length])
        if roll < 0.97:
            for _ in range(self.rng.randrange(1, 4)):
                at = self.rng.randrange(length)
                piece = self.rng.randbytes(min(self.rng.randrange(1, 100), length - at))
                data[at : at + len(piece)] = piece
        return bytes(data)

    def read(self, connection, offset, length, blocks):
        expected = bytes(self.ledger.image[offset : offset + length])
        buffer = nbd.Buffer(length)
        self.busy.update(blocks)

        def completed(error):
            self.busy.difference_update(blocks)
            if error.value == 0:
                self.counts["reads"] += 1
                if bytes(buffer.to_bytearray()) != expected:
                    self.failure = f"a read of {offset}+{length} does not return what was written"
            elif not self.is_lost(connection, error):
                self.failure = f"a read of {offset}+{length} failed with error {error.value}"
            return 1

        connection.aio_pread(buffer, offset, completed)

    def flush(self, connection):
        issued = self.ledger.tick()

        def completed(error):
            if error.value == 0:
                self.ledger.flushed(issued)
                self.counts["flushes"] += 1
            elif not self.is_lost(connection, error):
                self.failure = f"a flush failed with error {error.value}"
            return 1

        connection.aio_flush(completed)

    @staticmethod
    def is_lost(connection, error):
        """Whether the error says that the server is gone rather than that it refused."""
        gone = {32, 104, 107, 108, 111}
        return error.value in gone or connection.aio_is_dead() or connection.aio_is_closed()


def read_all(uri, size):
    connection = nbd.NBD()
    connection.connect_uri(uri)
    if connection.get_size() != size:
        raise Failed(f"the volume has {connection.get_size()} bytes, not {size}")
    image = b"".join(bytes(connection.pread(LEAF, at)) for at in range(0, size, LEAF))
    connection.shutdown()
    return image


def try_plants(ledger, kinds):
    """Each planted fault must be found, and the image without one accepted."""
    if judge(ledger, bytes(ledger.image)):
        raise Failed("the judge refuses an image in which every request is present")
    found = set()
    for kind in kinds:
        plant = planted(ledger, kind)
        if plant is not None:
            image, word = plant
            if not any(word in fault for fault in judge(ledger, bytes(image))):
                raise Failed(f"the judge missed the planted fault {kind}")
            found.add(kind)
    return found
