//! Requests of a guest: descriptor chains, headers, payloads and answers.
//!
//! Invariants: a request is answered after all earlier ones, so the used ring has the order of the available ring.
//! A payload is copied once, before the device compares it, because the guest can change it at any time. For the
//! same reason reads pass through a private buffer: the device may discard its first copy, and such bytes can be
//! another volume's.

use std::ops::Range;

use everbyte_device::request_queue::{Face, Request, RequestQueue, Work};
use everbyte_device::{BlockDevice, DeviceError, Fua, Hole};
use virtio_queue::desc::split::Descriptor;
use vm_memory::{Address, Bytes, GuestAddress, GuestMemory, Permissions};

use crate::config::{SECTOR, ZERO_SECTORS_MAX};
use crate::connection::Counts;
use crate::memory::{self, GuestMap};

/// Most descriptors of a request.
const CHAIN_MAX: usize = 1024;
/// Bytes of gathered payloads.
const ARENA_LEN: usize = 1 << 20;
/// Bytes of one piece of a read.
const PIECE_LEN: usize = 64 << 10;
const HEADER_LEN: u64 = 16;
/// Bytes of a serial number.
pub(crate) const SERIAL_LEN: usize = 20;

/// Types of requests.
mod kind {
    pub(super) const IN: u32 = 0;
    pub(super) const OUT: u32 = 1;
    pub(super) const FLUSH: u32 = 4;
    pub(super) const GET_ID: u32 = 8;
    pub(super) const DISCARD: u32 = 11;
    pub(super) const WRITE_ZEROES: u32 = 13;
}

/// The flag of a write-zeroes that may free space.
const UNMAP: u32 = 1;

/// The last byte of a request's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Status {
    Ok = 0,
    IoError = 1,
    Unsupported = 2,
}

/// The guest's memory was truncated: nothing that was loaded from it can be used.
#[derive(Debug)]
pub(crate) struct MemoryLost;

/// A descriptor chain is invalid.
#[derive(Debug)]
struct InvalidChain(&'static str);

/// The descriptor table of a queue.
#[derive(Clone, Copy)]
pub(crate) struct Table {
    pub(crate) address: GuestAddress,
    pub(crate) size: u16,
}

/// A range of guest memory.
#[derive(Clone, Copy)]
struct Segment {
    address: GuestAddress,
    len: u64,
}

/// The memory of a request: first the ranges to read from, then those to write to.
#[derive(Default)]
struct Chain {
    segments: Vec<Segment>,
    readable: usize,
    readable_len: u64,
    writable_len: u64,
}

impl Chain {
    /// Follows the chain that begins at `head`.
    fn read(&mut self, map: &GuestMap, table: Table, head: u16) -> Result<(), InvalidChain> {
        self.segments.clear();
        (self.readable, self.readable_len, self.writable_len) = (0, 0, 0);
        let (mut table, mut index) = (table, head);
        let mut is_indirect = false;
        let mut left = table.size;
        loop {
            // Each step takes an entry, so a loop ends here.
            left = left.checked_sub(1).ok_or(InvalidChain("it has no end"))?;
            if index >= table.size {
                return Err(InvalidChain("a link leaves the table"));
            }
            let at = table.address.checked_add(u64::from(index) * size_of::<Descriptor>() as u64);
            let descriptor = at.and_then(|at| map.read_obj::<Descriptor>(at).ok());
            let descriptor = descriptor.ok_or(InvalidChain("the table leaves the memory"))?;
            if descriptor.refers_to_indirect_table() {
                let len = usize::try_from(descriptor.len()).unwrap_or(usize::MAX);
                let entries = len / size_of::<Descriptor>();
                let is_whole =
                    len % size_of::<Descriptor>() == 0 && (1..=CHAIN_MAX).contains(&entries);
                // The specification forbids nested tables, and a link after a table.
                if is_indirect || descriptor.has_next() || !is_whole {
                    return Err(InvalidChain("an indirect table is invalid"));
                }
                is_indirect = true;
                table.address = descriptor.addr();
                table.size = u16::try_from(entries).unwrap_or(0);
                (index, left) = (0, table.size);
                continue;
            }
            self.push(map, descriptor)?;
            if !descriptor.has_next() {
                return Ok(());
            }
            index = descriptor.next();
        }
    }

    fn push(&mut self, map: &GuestMap, descriptor: Descriptor) -> Result<(), InvalidChain> {
        let segment = Segment { address: descriptor.addr(), len: u64::from(descriptor.len()) };
        if segment.len == 0 {
            return Ok(());
        }
        let len = usize::try_from(segment.len).unwrap_or(usize::MAX);
        let (access, sum) = match descriptor.is_write_only() {
            true => (Permissions::Write, &mut self.writable_len),
            false if self.writable_len > 0 => return Err(InvalidChain("its order is wrong")),
            false => (Permissions::Read, &mut self.readable_len),
        };
        *sum += segment.len;
        if !GuestMemory::check_range(map, segment.address, len, access) {
            return Err(InvalidChain("it leaves the memory"));
        }
        if self.segments.len() == CHAIN_MAX {
            return Err(InvalidChain("it is too long"));
        }
        self.segments.push(segment);
        if self.writable_len == 0 {
            self.readable = self.segments.len();
        }
        Ok(())
    }

    fn readable(&self) -> &[Segment] {
        &self.segments[..self.readable]
    }

    fn writable(&self) -> &[Segment] {
        &self.segments[self.readable..]
    }

    /// The place of the answer: the last byte to write to.
    fn status(&self) -> Option<GuestAddress> {
        let last = self.writable().last()?;
        Some(last.address.unchecked_add(last.len - 1))
    }
}

/// Calls `each` with the parts of the `len` bytes from `skip` on, and the place of each part in the range.
fn parts(
    segments: &[Segment],
    skip: u64,
    len: usize,
    mut each: impl FnMut(GuestAddress, Range<usize>),
) {
    let (mut skip, mut done) = (skip, 0);
    for segment in segments {
        if done == len {
            return;
        }
        if skip >= segment.len {
            skip -= segment.len;
            continue;
        }
        let here = usize::try_from(segment.len - skip).unwrap_or(usize::MAX).min(len - done);
        each(segment.address.unchecked_add(skip), done..done + here);
        (skip, done) = (0, done + here);
    }
}

/// Copies bytes from a guest. The ranges were checked against the memory.
fn load(map: &GuestMap, segments: &[Segment], skip: u64, out: &mut [u8]) {
    let len = out.len();
    parts(segments, skip, len, |address, place| {
        // Fails for a range outside the memory only.
        let _ = map.read_slice(&mut out[place], address);
    });
}

/// Copies bytes to a guest.
fn store(map: &GuestMap, segments: &[Segment], skip: u64, bytes: &[u8]) {
    parts(segments, skip, bytes.len(), |address, place| {
        let _ = map.write_slice(&bytes[place], address);
    });
}

/// The face's own part of a request.
#[derive(Clone)]
pub(crate) struct Tag {
    head: u16,
    status: GuestAddress,
    transfer: Transfer,
    /// The payload in the arena.
    payload: Range<usize>,
}

/// Requests with data that the queue does not gather.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Transfer {
    None,
    Read,
    /// A write with a payload that is longer than the arena.
    LongWrite,
    Serial,
}

/// An answer for the used ring.
#[derive(Clone, Copy)]
pub(crate) struct Answer {
    pub(crate) head: u16,
    /// Bytes written to the guest.
    pub(crate) len: u32,
}

/// Properties of a disk for its requests.
#[derive(Clone)]
pub(crate) struct Disk {
    pub(crate) name: String,
    pub(crate) serial: [u8; SERIAL_LEN],
    /// True if each write must be durable before its answer.
    pub(crate) is_write_through: bool,
}

/// The requests of one queue.
pub(crate) struct GuestFace<'m> {
    map: &'m GuestMap,
    disk: Disk,
    chain: Chain,
    arena: Vec<u8>,
    arena_used: usize,
    /// Writes with a payload in the arena.
    gathered: usize,
    piece: Vec<u8>,
    answers: Vec<Answer>,
    /// Of the requests since the last publication.
    counts: Counts,
    /// True once the log has a media error of this queue.
    warned: bool,
}

impl<'m> GuestFace<'m> {
    pub(crate) fn new(map: &'m GuestMap, disk: Disk) -> Self {
        Self {
            map,
            disk,
            chain: Chain::default(),
            arena: vec![0; ARENA_LEN],
            arena_used: 0,
            gathered: 0,
            piece: vec![0; PIECE_LEN],
            answers: Vec::new(),
            counts: Counts::default(),
            warned: false,
        }
    }

    /// The answers since the last clearing, in order of the requests.
    pub(crate) fn answers(&mut self) -> &mut Vec<Answer> {
        &mut self.answers
    }

    /// Takes the counts of the requests since the last call.
    pub(crate) fn take_counts(&mut self) -> Counts {
        std::mem::take(&mut self.counts)
    }

    /// Submits the request with the chain at `head`.
    ///
    /// # Errors
    /// The guest's memory was truncated. The request has no effect.
    pub(crate) fn submit(
        &mut self,
        queue: &mut RequestQueue<Tag>,
        table: Table,
        head: u16,
    ) -> Result<(), MemoryLost> {
        let read = self.chain.read(self.map, table, head);
        let status =
            read.and_then(|()| self.chain.status().ok_or(InvalidChain("it has no status")));
        let status = match status {
            Ok(status) => status,
            Err(InvalidChain(reason)) => {
                tracing::debug!(disk = self.disk.name, head, "invalid descriptor chain: {reason}");
                // Answers keep the order of their requests.
                queue.execute_writes(self);
                self.counts.requests += 1;
                self.answers.push(Answer { head, len: 0 });
                return Ok(());
            }
        };
        match self.request(queue, head, status)? {
            Ok(request) => {
                self.gathered += usize::from(request.work == Work::Write);
                let Ok(()) = queue.submit(self, request);
            }
            Err(refused) => {
                queue.execute_writes(self);
                self.answer(head, status, refused, 1);
            }
        }
        Ok(())
    }

    /// Decodes a request and copies its payload.
    fn request(
        &mut self,
        queue: &mut RequestQueue<Tag>,
        head: u16,
        status: GuestAddress,
    ) -> Result<Result<Request<Tag>, Status>, MemoryLost> {
        let mut header = [0; 16];
        load(self.map, self.chain.readable(), 0, &mut header);
        let (kind, sector) = (le32(&header, 0), le64(&header, 8));
        let tag = Tag { head, status, transfer: Transfer::None, payload: 0..0 };
        let out_len = self.chain.readable_len.checked_sub(HEADER_LEN);
        let request = match (out_len, sector.checked_mul(SECTOR)) {
            (Some(out_len), Some(offset)) => self.decode(queue, tag, (kind, offset), out_len),
            _ => Err(Status::IoError),
        };
        // After all loads: truncated memory reads as zeroes, which no guest has sent.
        match memory::is_lost(self.map) {
            true => Err(MemoryLost),
            false => Ok(request),
        }
    }

    fn decode(
        &mut self,
        queue: &mut RequestQueue<Tag>,
        mut tag: Tag,
        (kind, offset): (u32, u64),
        out_len: u64,
    ) -> Result<Request<Tag>, Status> {
        // Without the status byte. The chain has one: its place was found before.
        let in_len = self.chain.writable_len - 1;
        // A driver without a volatile cache need not flush.
        let fua = if self.disk.is_write_through { Fua::Yes } else { Fua::No };
        let (work, offset, len) = match kind {
            kind::IN if in_len.is_multiple_of(SECTOR) => {
                tag.transfer = Transfer::Read;
                (Work::Transfer, offset, in_len)
            }
            kind::OUT if out_len.is_multiple_of(SECTOR) => match self.gather(queue, out_len) {
                Some(payload) => {
                    tag.payload = payload;
                    (Work::Write, offset, out_len)
                }
                None => {
                    tag.transfer = Transfer::LongWrite;
                    (Work::Transfer, offset, out_len)
                }
            },
            kind::FLUSH => (Work::Flush, 0, 0),
            kind::GET_ID => {
                tag.transfer = Transfer::Serial;
                (Work::Transfer, 0, in_len)
            }
            kind::DISCARD | kind::WRITE_ZEROES => self.zeroing(kind, out_len)?,
            kind::IN | kind::OUT => return Err(Status::IoError),
            _ => return Err(Status::Unsupported),
        };
        Ok(Request { tag, work, offset, len, fua })
    }

    /// Copies a payload into the arena. Returns `None` if it is too long for it.
    fn gather(&mut self, queue: &mut RequestQueue<Tag>, len: u64) -> Option<Range<usize>> {
        let len = usize::try_from(len).ok().filter(|len| *len <= ARENA_LEN)?;
        // The execution empties the arena, so the payload then fits.
        if ARENA_LEN - self.arena_used < len {
            queue.execute_writes(self);
        }
        let place = self.arena_used..self.arena_used + len;
        load(self.map, self.chain.readable(), HEADER_LEN, &mut self.arena[place.clone()]);
        self.arena_used = place.end;
        Some(place)
    }

    /// Decodes the range of a discard or write-zeroes.
    fn zeroing(&self, kind: u32, out_len: u64) -> Result<(Work, u64, u64), Status> {
        let mut range = [0; 16];
        if out_len != range.len() as u64 {
            return Err(Status::IoError);
        }
        load(self.map, self.chain.readable(), HEADER_LEN, &mut range);
        let (sector, sectors, flags) = (le64(&range, 0), le32(&range, 8), le32(&range, 12));
        let work = match (kind, flags) {
            (kind::DISCARD, 0) => Work::Discard,
            (kind::WRITE_ZEROES, 0) => Work::WriteZeroes { hole: Hole::Forbidden, fast: false },
            (kind::WRITE_ZEROES, UNMAP) => Work::WriteZeroes { hole: Hole::Allowed, fast: false },
            _ => return Err(Status::Unsupported),
        };
        match sector.checked_mul(SECTOR) {
            // The limit bounds the time of one request; the guest knows it from the configuration.
            Some(offset) if sectors <= ZERO_SECTORS_MAX => {
                Ok((work, offset, u64::from(sectors) * SECTOR))
            }
            _ => Err(Status::IoError),
        }
    }

    /// Reads the range in pieces that end at blocks, so that each block is a snapshot.
    fn read(
        &mut self,
        device: &dyn BlockDevice,
        request: &Request<Tag>,
    ) -> Result<(), DeviceError> {
        let mut done = 0;
        while done < request.len {
            let len = piece_len(request.offset + done, request.len - done, PIECE_LEN);
            let piece = &mut self.piece[..len];
            device.read(request.offset + done, piece)?;
            store(self.map, self.chain.writable(), done, piece);
            done += len as u64;
        }
        Ok(())
    }

    fn long_write(
        &mut self,
        device: &dyn BlockDevice,
        request: &Request<Tag>,
    ) -> Result<(), DeviceError> {
        let mut done = 0;
        while done < request.len {
            let len = piece_len(request.offset + done, request.len - done, ARENA_LEN);
            // No write is gathered: a transfer comes after all earlier requests.
            let piece = &mut self.arena[..len];
            load(self.map, self.chain.readable(), HEADER_LEN + done, piece);
            // Before the write: zeroes of lost memory must not reach the volume.
            if memory::is_lost(self.map) {
                return Err(DeviceError::Gone);
            }
            device.write(request.offset + done, piece, request.fua)?;
            done += len as u64;
        }
        Ok(())
    }

    fn count_bytes(&mut self, request: &Request<Tag>) {
        match (request.work, request.tag.transfer) {
            (Work::Write, _) | (_, Transfer::LongWrite) => self.counts.written_bytes += request.len,
            (_, Transfer::Read) => self.counts.read_bytes += request.len,
            _ => {}
        }
    }

    fn answer(&mut self, head: u16, status: GuestAddress, value: Status, len: u64) {
        self.counts.requests += 1;
        // The place was checked. If the memory is lost by now, the connection ends.
        let _ = self.map.write_obj(value as u8, status);
        self.answers.push(Answer { head, len: u32::try_from(len).unwrap_or(u32::MAX) });
    }

    fn log(&mut self, error: &DeviceError) {
        let disk = &self.disk.name;
        // The first failure that the guest did not cause. The log of the program limits the others.
        if matches!(error, DeviceError::Media { .. }) && !std::mem::replace(&mut self.warned, true)
        {
            tracing::warn!(disk, %error, "a request failed");
        } else {
            tracing::debug!(disk, %error, "a request failed");
        }
    }
}

impl Face for GuestFace<'_> {
    type Tag = Tag;
    type Stop = std::convert::Infallible;

    fn payload<'a>(&'a self, write: &'a Request<Tag>) -> &'a [u8] {
        &self.arena[write.tag.payload.clone()]
    }

    fn transfer(
        &mut self,
        device: &dyn BlockDevice,
        request: &Request<Tag>,
    ) -> Result<(), std::convert::Infallible> {
        let done = match request.tag.transfer {
            Transfer::LongWrite => self.long_write(device, request),
            Transfer::Serial => {
                let len = usize::try_from(request.len).unwrap_or(usize::MAX).min(SERIAL_LEN);
                store(self.map, self.chain.writable(), 0, &self.disk.serial[..len]);
                Ok(())
            }
            _ => self.read(device, request),
        };
        self.complete(request, done);
        Ok(())
    }

    fn complete(&mut self, request: &Request<Tag>, done: Result<(), DeviceError>) {
        if request.work == Work::Write {
            self.gathered -= 1;
            // The last payload of the arena is written.
            if self.gathered == 0 {
                // Not earlier: gathered writes keep their places in the arena until they execute.
                self.arena_used = 0;
            }
        }
        let written = match request.tag.transfer {
            Transfer::Read => request.len,
            Transfer::Serial => request.len.min(SERIAL_LEN as u64),
            _ => 0,
        };
        let (status, written) = match done {
            Ok(()) => {
                self.count_bytes(request);
                (Status::Ok, written)
            }
            Err(error) => {
                self.log(&error);
                (Status::IoError, 0)
            }
        };
        self.answer(request.tag.head, request.tag.status, status, written + 1);
    }
}

/// The length of a piece from `offset` on. All pieces but the last end at a multiple of `piece_max`.
fn piece_len(offset: u64, left: u64, piece_max: usize) -> usize {
    let piece_max = piece_max as u64;
    usize::try_from(left.min(piece_max - offset % piece_max)).unwrap_or(0)
}

fn le32(bytes: &[u8; 16], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn le64(bytes: &[u8; 16], at: usize) -> u64 {
    u64::from(le32(bytes, at)) | u64::from(le32(bytes, at + 4)) << 32
}
