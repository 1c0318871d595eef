//! The vhost-user-blk server: a virtual machine sends arbitrary messages, and a guest makes arbitrary rings.
//!
//! Oracle: no panic, the call returns, and no byte changes that the requests cannot change.

use std::fs::File;
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use arbitrary::Arbitrary;
use everbyte_device::{BlockDevice, MemoryDevice};
use everbyte_vhost::{VhostSettings, serve_connection};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::MemfdFlags;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

use crate::socket::peer_saying;

const DEVICE_BYTES: u64 = 32 << 10;
/// Answers to more messages could fill the socket.
const SAID_MAX: usize = 4096;

const MEMORY_LEN: usize = 64 << 10;
/// Physical address of the first byte of memory.
const GUEST: u64 = 1 << 32;
const ENTRIES: usize = 16;
const AVAIL: usize = 0x200;
const USED: usize = 0x400;
const USED_LEN: usize = 6 + 8 * ENTRIES;
const HEADERS: usize = 0x600;
const INDIRECT: usize = 0x800;
const DATA: usize = 0x1000;
/// Requests of a story.
const CHAINS: usize = 4;
/// The flags of a descriptor with a successor, and of one that the device writes to.
const NEXT: u16 = 1;
const WRITE: u16 = 2;

/// A device with a pattern.
fn device() -> Arc<MemoryDevice> {
    let device = Arc::new(MemoryDevice::new(DEVICE_BYTES));
    device.write_at(0, &vec![0xa5; DEVICE_BYTES as usize]).unwrap();
    device
}

fn contents(device: &MemoryDevice) -> Vec<u8> {
    let mut bytes = vec![0; DEVICE_BYTES as usize];
    device.read_at(0, &mut bytes).unwrap();
    bytes
}

fn serve(socket: UnixStream, device: &Arc<MemoryDevice>) {
    let settings =
        VhostSettings { name: "disk".to_owned(), address: String::new(), write_back: true };
    // Whether the virtual machine or the server ends the connection is not of interest.
    let _ = serve_connection(socket, Arc::<MemoryDevice>::clone(device), &settings);
}

/// A virtual machine sends `bytes`.
///
/// # Panics
/// If a promise is broken.
pub fn vhost_messages(bytes: &[u8]) {
    let device = device();
    let before = contents(&device);
    let (near, _far) = peer_saying(&bytes[..bytes.len().min(SAID_MAX)]);
    serve(near, &device);
    // Without descriptors there is no memory, and so no request.
    assert!(contents(&device) == before, "the device has changed");
}

#[derive(Debug, Arbitrary)]
enum Place {
    Header(u8),
    Data(u16),
    Indirect(u8),
    Anywhere(u64),
}

/// A descriptor in place of another.
#[derive(Debug, Arbitrary)]
struct Corruption {
    slot: u8,
    place: Place,
    len: u16,
    flags: u8,
    next: u8,
}

/// A valid chain of three descriptors.
#[derive(Debug, Arbitrary)]
struct Request {
    kind: u8,
    sector: u8,
    len: u8,
}

#[derive(Debug, Arbitrary)]
struct Story {
    has_event_index: bool,
    /// The last one is in an indirect table.
    requests: [Request; CHAINS],
    heads: [u8; 6],
    corruptions: Vec<Corruption>,
}

#[derive(Clone, Copy, Default)]
struct Descriptor {
    address: u64,
    len: u32,
    flags: u16,
    next: u16,
}

/// Both tables: the one of the queue, and an indirect one.
type Tables = [Descriptor; 2 * ENTRIES];

impl Request {
    fn kind(&self) -> u32 {
        [0, 1, 1, 4, 8, 11, 13, u32::from(self.kind)][usize::from(self.kind) % 8]
    }

    fn chain(&self, slot: usize, first: u16) -> [Descriptor; 3] {
        let kind = self.kind();
        let len = match kind {
            11 | 13 => 16,
            8 => 20,
            _ => u32::from(self.len % 5) * 512,
        };
        let data = GUEST + (DATA + slot * 0x2000) as u64;
        let is_read = [0, 8].contains(&kind);
        [
            Descriptor { address: header(slot), len: 16, flags: NEXT, next: first + 1 },
            Descriptor {
                address: data,
                len,
                flags: if is_read { NEXT | WRITE } else { NEXT },
                next: first + 2,
            },
            Descriptor { address: data + 0x1fff, len: 1, flags: WRITE, next: 0 },
        ]
    }
}

fn header(slot: usize) -> u64 {
    GUEST + (HEADERS + slot % CHAINS * 16) as u64
}

impl Corruption {
    fn descriptor(&self) -> Descriptor {
        const LENS: [u32; 8] = [0, 1, 15, 16, 20, 32, 512, u32::MAX];
        let address = match self.place {
            Place::Header(slot) => header(usize::from(slot)),
            Place::Data(at) => GUEST + (DATA + usize::from(at) % (MEMORY_LEN - DATA)) as u64,
            Place::Indirect(slot) => GUEST + (INDIRECT + usize::from(slot) % ENTRIES * 16) as u64,
            Place::Anywhere(address) => address,
        };
        // Lengths with a meaning are more frequent than others.
        let len = match self.len.checked_sub(1 << 12) {
            None => LENS[usize::from(self.len) % LENS.len()],
            Some(other) => u32::from(other),
        };
        let (flags, next) = (u16::from(self.flags % 8), u16::from(self.next % 18));
        Descriptor { address, len, flags, next }
    }
}

impl Story {
    fn tables(&self) -> Tables {
        let mut tables = [Descriptor::default(); 2 * ENTRIES];
        for (slot, request) in self.requests.iter().enumerate() {
            let is_indirect = slot + 1 == CHAINS;
            let first = if is_indirect { 0 } else { slot * 3 };
            let start = if is_indirect { ENTRIES } else { first };
            tables[start..start + 3].copy_from_slice(&request.chain(slot, first as u16));
        }
        let table = GUEST + INDIRECT as u64;
        tables[(CHAINS - 1) * 3] = Descriptor { address: table, len: 48, flags: 4, next: 0 };
        for corruption in &self.corruptions {
            tables[usize::from(corruption.slot) % (2 * ENTRIES)] = corruption.descriptor();
        }
        tables
    }

    fn memory(&self, tables: &Tables) -> Vec<u8> {
        let mut memory = vec![0; MEMORY_LEN];
        let mut put = |at: usize, bytes: &[u8]| memory[at..at + bytes.len()].copy_from_slice(bytes);
        for (slot, descriptor) in tables.iter().enumerate() {
            let at = if slot < ENTRIES { slot * 16 } else { INDIRECT + (slot - ENTRIES) * 16 };
            put(at, &descriptor.address.to_le_bytes());
            put(at + 8, &descriptor.len.to_le_bytes());
            put(at + 12, &descriptor.flags.to_le_bytes());
            put(at + 14, &descriptor.next.to_le_bytes());
        }
        for (slot, request) in self.requests.iter().enumerate() {
            put(HEADERS + slot * 16, &request.kind().to_le_bytes());
            put(HEADERS + slot * 16 + 8, &u64::from(request.sector % 70).to_le_bytes());
            // The range of a discard, in front of the payload.
            let data = DATA + slot * 0x2000;
            put(data, &u64::from(request.sector % 70).to_le_bytes());
            put(data + 8, &u32::from(request.len % 9).to_le_bytes());
        }
        put(AVAIL + 2, &(self.heads.len() as u16).to_le_bytes());
        for (slot, head) in self.heads.iter().enumerate() {
            // Mostly the first descriptor of a chain, and outside the table now and then.
            let head = match head {
                0..200 => u16::from(head % CHAINS as u8) * 3,
                _ => u16::from(head % 17),
            };
            put(AVAIL + 4 + slot * 2, &head.to_le_bytes());
        }
        memory
    }

    /// Checks the memory and the device after all requests.
    fn check(&self, tables: &Tables, before: &[u8], after: &[u8], device_has_changed: bool) {
        let in_memory = |address: u64| (GUEST..GUEST + MEMORY_LEN as u64).contains(&address);
        let mut may_change = vec![false; MEMORY_LEN];
        may_change[USED..USED + USED_LEN].fill(true);
        for descriptor in tables.iter().filter(|descriptor| descriptor.flags & WRITE != 0) {
            if !in_memory(descriptor.address) || descriptor.len == 0 {
                continue;
            }
            let start = (descriptor.address - GUEST) as usize;
            if start < DATA {
                // The device writes to the tables themselves, and so makes other requests.
                return;
            }
            may_change[start..MEMORY_LEN.min(start + descriptor.len as usize)].fill(true);
        }
        for (at, (old, new)) in before.iter().zip(after).enumerate() {
            assert!(may_change[at] || old == new, "byte {at:#x} of the memory has changed");
        }
        // A corruption can make a header of other bytes.
        let changes = self.requests.iter().any(|request| ![0, 4, 8].contains(&request.kind()));
        let is_told = changes || !self.corruptions.is_empty();
        assert!(is_told || !device_has_changed, "the device has changed");
    }
}

/// Sends a message with at most one descriptor.
fn say(socket: &UnixStream, code: u32, body: &[u8], descriptor: Option<BorrowedFd<'_>>) {
    let mut message: Vec<u8> =
        [code, 1, body.len() as u32].iter().flat_map(|word| word.to_ne_bytes()).collect();
    message.extend(body);
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let descriptors: Vec<_> = descriptor.into_iter().collect();
    if !descriptors.is_empty() {
        assert!(ancillary.push(SendAncillaryMessage::ScmRights(&descriptors)));
    }
    sendmsg(socket, &[IoSlice::new(&message)], &mut ancillary, SendFlags::empty()).unwrap();
}

fn words(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

/// A guest's ring from a story.
///
/// # Panics
/// If a promise is broken.
pub fn vhost_ring(bytes: &[u8]) {
    let Some(story) = crate::story::<Story>(bytes) else { return };
    let tables = story.tables();
    let before = story.memory(&tables);
    let memory = File::from(rustix::fs::memfd_create("guest", MemfdFlags::CLOEXEC).unwrap());
    memory.write_all_at(&before, 0).unwrap();
    let kick = eventfd(0, EventfdFlags::CLOEXEC).unwrap();

    let (near, far) = UnixStream::pair().unwrap();
    let features = 1_u64 << 32 | 1 << 28 | 1 << 9 | u64::from(story.has_event_index) << 29;
    say(&far, 2, &words(&[features]), None);
    let region = words(&[1, GUEST, MEMORY_LEN as u64, GUEST, 0]);
    say(&far, 5, &region, Some(memory.as_fd()));
    say(&far, 8, &words(&[(ENTRIES as u64) << 32]), None);
    let at = |offset: usize| GUEST + offset as u64;
    say(&far, 9, &words(&[0, at(0), at(USED), at(AVAIL), 0]), None);
    // The thread of the queue drains the ring once, even if it ends before it has started.
    say(&far, 12, &words(&[0]), Some(kick.as_fd()));
    far.shutdown(Shutdown::Write).unwrap();

    let device = device();
    let old = contents(&device);
    serve(near, &device);
    let mut after = vec![0; MEMORY_LEN];
    memory.read_exact_at(&mut after, 0).unwrap();
    story.check(&tables, &before, &after, contents(&device) != old);
}
