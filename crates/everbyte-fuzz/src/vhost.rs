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
/// The flag of a descriptor that the device writes to.
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
    let settings = VhostSettings { name: "disk".to_owned(), write_back: true };
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

#[derive(Debug, Arbitrary)]
struct Descriptor {
    place: Place,
    len: u16,
    flags: u8,
    next: u8,
}

impl Descriptor {
    fn address(&self) -> u64 {
        let offset = match self.place {
            Place::Header(slot) => HEADERS + usize::from(slot) % ENTRIES * 16,
            Place::Data(at) => DATA + usize::from(at) % (MEMORY_LEN - DATA),
            Place::Indirect(slot) => INDIRECT + usize::from(slot) % ENTRIES * 16,
            Place::Anywhere(address) => return address,
        };
        GUEST + offset as u64
    }

    /// Lengths with a meaning are more frequent than others.
    fn len(&self) -> u32 {
        const LENS: [u32; 8] = [0, 1, 16, 20, 32, 256, 512, 4096];
        match self.len.checked_sub(1 << 12) {
            None => LENS[usize::from(self.len) % LENS.len()],
            Some(other) => u32::from(other),
        }
    }

    fn flags(&self) -> u16 {
        u16::from(self.flags % 8)
    }

    fn bytes(&self) -> Vec<u8> {
        let mut bytes = self.address().to_le_bytes().to_vec();
        bytes.extend(self.len().to_le_bytes());
        bytes.extend(self.flags().to_le_bytes());
        bytes.extend(u16::from(self.next % 18).to_le_bytes());
        bytes
    }
}

#[derive(Debug, Arbitrary)]
struct Story {
    descriptors: Vec<Descriptor>,
    indirect: Vec<Descriptor>,
    headers: Vec<(u8, u16)>,
    heads: Vec<u8>,
    has_event_index: bool,
}

impl Story {
    fn all(&self) -> impl Iterator<Item = &Descriptor> {
        self.descriptors.iter().take(ENTRIES).chain(self.indirect.iter().take(ENTRIES))
    }

    fn memory(&self) -> Vec<u8> {
        let mut memory = vec![0; MEMORY_LEN];
        let mut put = |at: usize, bytes: &[u8]| memory[at..at + bytes.len()].copy_from_slice(bytes);
        for (table, list) in [(0, &self.descriptors), (INDIRECT, &self.indirect)] {
            for (slot, descriptor) in list.iter().take(ENTRIES).enumerate() {
                put(table + slot * 16, &descriptor.bytes());
            }
        }
        for (slot, (kind, sector)) in self.headers.iter().take(ENTRIES).enumerate() {
            put(HEADERS + slot * 16, &u32::from(kind % 16).to_le_bytes());
            put(HEADERS + slot * 16 + 8, &u64::from(*sector).to_le_bytes());
        }
        let heads = self.heads.iter().take(ENTRIES);
        put(AVAIL + 2, &(heads.len() as u16).to_le_bytes());
        for (slot, head) in heads.enumerate() {
            put(AVAIL + 4 + slot * 2, &u16::from(head % 17).to_le_bytes());
        }
        memory
    }

    /// Checks the memory after all requests.
    fn check(&self, before: &[u8], after: &[u8], device_has_changed: bool) {
        let in_memory = |address: u64| (GUEST..GUEST + MEMORY_LEN as u64).contains(&address);
        let writable = self.all().filter(|descriptor| descriptor.flags() & WRITE != 0);
        let mut may_change = vec![false; MEMORY_LEN];
        may_change[USED..USED + USED_LEN].fill(true);
        for descriptor in writable.filter(|descriptor| in_memory(descriptor.address())) {
            let start = (descriptor.address() - GUEST) as usize;
            let end = (start + descriptor.len() as usize).min(MEMORY_LEN);
            if descriptor.len() > 0 && start < DATA {
                // The device writes to the tables themselves, and so makes other requests.
                return;
            }
            may_change[start..end].fill(true);
        }
        for (at, (old, new)) in before.iter().zip(after).enumerate() {
            assert!(may_change[at] || old == new, "byte {at:#x} of the memory has changed");
        }
        // Headers are in their place, or in data that begins as zeroes: reads.
        let is_odd = |d: &Descriptor| matches!(d.place, Place::Anywhere(at) if in_memory(at));
        let changes = |(kind, _): &(u8, u16)| [1, 11, 13].contains(&(kind % 16));
        if !self.headers.iter().take(ENTRIES).any(changes) && !self.all().any(is_odd) {
            // An indirect table as a header has addresses of this guest in its first bytes.
            let reads_table = |d: &Descriptor| matches!(d.place, Place::Indirect(_));
            assert!(self.all().any(reads_table) || !device_has_changed, "the device has changed");
        }
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
    let before = story.memory();
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
    story.check(&before, &after, contents(&device) != old);
}
