"""The ledger of a client and the judge of what a crash left.

The ledger notes for every request when it was issued, when it was answered, and when it became
durable (answered with FUA, or answered before a FLUSH that was answered). Requests in flight never
share a block, so the requests on one block have a known order, and a block must hold what a prefix
of them makes of it. `judge` demands:

- every block holds the bytes after some prefix of its requests: nothing torn, nothing foreign;
- the prefix includes every durable request: no acknowledged flush is lost;
- a request over several blocks is there as a whole or not at all;
- requests without FUA vanish from the end only: if one is there, every request answered before it
  was issued is there as well.

Where two prefixes give the same bytes, the doubt is decided in the server's favour. A request that
changes nothing in a block is not proved by what that block holds: zeroes over zeroes, with a durable
write on top, may be undone elsewhere while the durable write stays.
"""

import struct
import zlib

BLOCK = 4096
SECTOR = 512
PLANTS = ["lose-flush", "tear", "half", "reorder"]
STAMP = struct.Struct("<4sIQQI")
MAGIC = b"LDGR"


class Request:
    """One write, trim or write-zeroes."""

    __slots__ = ("number", "kind", "offset", "length", "data", "fua", "issued", "answered", "durable")

    def __init__(self, number, kind, offset, length, data, fua, issued):
        self.number = number
        self.kind = kind
        self.offset = offset
        self.length = length
        self.data = data
        self.fua = fua
        self.issued = issued
        self.answered = None
        self.durable = False

    def blocks(self):
        return range(self.offset // BLOCK, (self.offset + self.length - 1) // BLOCK + 1)

    def apply(self, block, content):
        """Does to `content`, the bytes of `block`, what the request does."""
        start = max(self.offset, block * BLOCK)
        end = min(self.offset + self.length, (block + 1) * BLOCK)
        piece = bytes(end - start)
        if self.data is not None:
            piece = self.data[start - self.offset : end - self.offset]
        content[start - block * BLOCK : end - block * BLOCK] = piece

    def __str__(self):
        return (
            f"request {self.number} ({self.kind}{' FUA' if self.fua else ''} "
            f"{self.offset}+{self.length}, issued at {self.issued}, answered at {self.answered}, "
            f"{'durable' if self.durable else 'not durable'})"
        )


def stamped(rng, number, offset, length):
    """Random bytes in which every whole sector says which request wrote it."""
    data = bytearray(rng.randbytes(length))
    for start in range(-offset % SECTOR, length - SECTOR + 1, SECTOR):
        body = bytes(data[start + STAMP.size : start + SECTOR])
        sector = (offset + start) // SECTOR
        STAMP.pack_into(data, start, MAGIC, 0, number, sector, zlib.crc32(body))
    return bytes(data)


def stamps(content):
    """What the stamps in a block say, for a person to read."""
    words = []
    for start in range(0, BLOCK, SECTOR):
        sector = content[start : start + SECTOR]
        magic, _, number, at, crc = STAMP.unpack_from(sector)
        if not any(sector):
            words.append("zero")
        elif magic != MAGIC:
            words.append("?")
        elif crc != zlib.crc32(sector[STAMP.size :]):
            words.append(f"{number}@{at}:torn")
        else:
            words.append(f"{number}@{at}")
    return " ".join(words)


class Ledger:
    """See the module's head. `image` is what the device reads as when every request is answered."""

    def __init__(self, size):
        self.size = size
        self.base = bytearray(size)
        self.image = bytearray(size)
        self.clock = 0
        self.requests = {}
        self.on_block = {}
        self.undurable = set()

    def tick(self):
        self.clock += 1
        return self.clock

    def issue(self, number, kind, offset, length, data, fua):
        request = Request(number, kind, offset, length, data, fua, self.tick())
        self.requests[number] = request
        self.image[offset : offset + length] = bytes(length) if data is None else data
        for block in request.blocks():
            self.on_block.setdefault(block, []).append(request)
        return request

    def answer(self, request):
        request.answered = self.tick()
        if request.fua:
            request.durable = True
        else:
            self.undurable.add(request)

    def refuse(self, request):
        """The server answered with an error: the request did nothing."""
        del self.requests[request.number]
        for block in request.blocks():
            requests = self.on_block[block]
            assert requests.pop() is request, "requests in flight shared a block"
            content = bytearray(self.base[block * BLOCK : (block + 1) * BLOCK])
            for earlier in requests:
                earlier.apply(block, content)
            self.image[block * BLOCK : (block + 1) * BLOCK] = content

    def flushed(self, issued):
        """A FLUSH issued at `issued` was answered."""
        done = {request for request in self.undurable if request.answered < issued}
        for request in done:
            request.durable = True
        self.undurable -= done

    def settle(self, observed):
        """Starts afresh from what was found after a crash; all of that is durable."""
        self.base[:] = observed
        self.image[:] = observed
        self.requests.clear()
        self.on_block.clear()
        self.undurable.clear()

    def versions(self, block):
        """The block's bytes after each prefix of its requests, the empty one first."""
        content = bytearray(self.base[block * BLOCK : (block + 1) * BLOCK])
        yield bytes(content)
        for request in self.on_block.get(block, []):
            request.apply(block, content)
            yield bytes(content)


def judge(ledger, observed):
    """Everything that `observed` must not be; empty if it is fine."""
    faults, lowest, highest = judge_blocks(ledger, observed)
    return faults + judge_requests(ledger, lowest, highest)


def judge_blocks(ledger, observed):
    """The faults of single blocks, and for each of the others the fewest and the most of its requests that
    may be there."""
    faults, lowest, highest = [], {}, {}
    for block in range(ledger.size // BLOCK):
        content = observed[block * BLOCK : (block + 1) * BLOCK]
        requests = ledger.on_block.get(block)
        if requests is None:
            if content != ledger.base[block * BLOCK : (block + 1) * BLOCK]:
                faults.append(f"block {block} changed without a request: {stamps(content)}")
            continue
        matches = [k for k, version in enumerate(ledger.versions(block)) if version == content]
        durable = max((k + 1 for k, request in enumerate(requests) if request.durable), default=0)
        allowed = [k for k in matches if k >= durable]
        if allowed:
            lowest[block], highest[block] = allowed[0], allowed[-1]
        elif matches:
            lost = requests[durable - 1]
            faults.append(f"block {block} lost a durable write: {lost}; it holds {stamps(content)}")
        else:
            history = "; ".join(str(request) for request in requests[-6:])
            faults.append(f"block {block} is torn: {stamps(content)}; last requests: {history}")
    return faults, lowest, highest


def judge_requests(ledger, lowest, highest):
    """Whole requests, and their order; see the module's head."""
    faults, present, missing = [], set(), set()
    for block, lo in lowest.items():
        requests, versions = ledger.on_block[block], list(ledger.versions(block))
        present.update(r for k, r in enumerate(requests[:lo]) if versions[k] != versions[k + 1])
        missing.update(requests[highest[block] :])
    for request in sorted(present & missing, key=lambda r: r.number):
        faults.append(f"half of a request is there: {request}")
    newest = max(
        (request for request in present if not request.fua), key=lambda r: r.issued, default=None
    )
    for request in sorted(missing, key=lambda r: r.number):
        answered = request.answered
        if newest is not None and answered is not None and answered < newest.issued:
            faults.append(f"out of order: {newest} is there but not the earlier {request}")
    return faults


def planted(ledger, kind):
    """An image with one fault of the given kind in it, and the word the judge must use for it;
    `None` if the ledger's history has no place for such a fault."""
    image = bytearray(ledger.image)
    blocks = sorted(ledger.on_block)
    if kind == "lose-flush":
        for block in blocks:
            versions, requests = list(ledger.versions(block)), ledger.on_block[block]
            last = max((k + 1 for k, r in enumerate(requests) if r.durable), default=0)
            if last and versions[last - 1] not in versions[last:]:
                return put(image, block, versions[last - 1]), "lost a durable write"
    if kind == "tear":
        for block in blocks:
            versions = list(ledger.versions(block))
            mixed = versions[-1][: BLOCK // 2] + versions[-2][BLOCK // 2 :]
            if mixed not in versions:
                return put(image, block, mixed), "is torn"
    for block in blocks:
        versions, request = list(ledger.versions(block)), ledger.on_block[block][-1]
        if request.durable or versions[-2] == versions[-1]:
            continue
        alone = len(request.blocks()) == 1
        if kind == "half" and not alone and shows(ledger, request, block):
            return put(image, block, versions[-2]), "half of a request"
        if kind == "reorder" and alone and request.answered is not None:
            later = (
                other.issued > request.answered and not other.fua and shows(ledger, other, block)
                for other in ledger.requests.values()
            )
            if any(later):
                return put(image, block, versions[-2]), "out of order"
    return None


def shows(ledger, request, but_for):
    """Whether a block other than `but_for` proves, when all requests are there, that this one is."""
    for block in request.blocks():
        if block != but_for:
            versions = list(ledger.versions(block))
            before = ledger.on_block[block].index(request) + 1
            changed = versions[before] != versions[before - 1]
            if changed and versions[-1] not in versions[:before]:
                return True
    return False


def put(image, block, content):
    image[block * BLOCK : (block + 1) * BLOCK] = content
    return image
