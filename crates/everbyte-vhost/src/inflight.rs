//! The in-flight region: requests that a queue has taken and not completed, in memory that survives the server.
//!
//! The layout is that of split rings in the vhost-user specification, "Inflight I/O tracking". The region comes
//! from the virtual machine, so no value of it is trusted.

use std::fs::File;
use std::io;
use std::mem::offset_of;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rustix::fs::MemfdFlags;
use vm_memory::{AtomicAccess, Bytes, MemoryRegionAddress};

use crate::config::{QUEUE_SIZE_MAX, QUEUES_MAX};
use crate::memory::Region;

/// The state of one queue, followed by its descriptors.
#[repr(C)]
struct QueueHeader {
    features: u64,
    version: u16,
    desc_num: u16,
    last_batch_head: u16,
    used_idx: u16,
}

/// The state of one descriptor.
#[repr(C)]
struct Descriptor {
    inflight: u8,
    padding: [u8; 5],
    next: u16,
    counter: u64,
}

const HEADER_LEN: usize = size_of::<QueueHeader>();
const DESCRIPTOR_LEN: usize = size_of::<Descriptor>();
const _: () = assert!(HEADER_LEN == 16 && DESCRIPTOR_LEN == 16);
/// Alignment of each queue's part.
const ALIGN: usize = 64;
const VERSION: u16 = 1;

/// The region of all queues.
pub(crate) struct Inflight {
    region: Region,
    queues: u16,
    queue_size: u16,
}

/// Bytes of one queue's part.
fn stride(queue_size: u16) -> usize {
    (HEADER_LEN + DESCRIPTOR_LEN * usize::from(queue_size)).next_multiple_of(ALIGN)
}

/// Bytes of a region; `None` if no region can have these queues.
pub(crate) fn region_len(queues: u16, queue_size: u16) -> Option<usize> {
    let is_valid = (1..=QUEUES_MAX).contains(&queues) && (1..=QUEUE_SIZE_MAX).contains(&queue_size);
    is_valid.then(|| stride(queue_size) * usize::from(queues))
}

/// Makes the file of an empty region.
///
/// # Errors
/// The system has no memory or no descriptors.
pub(crate) fn create(len: usize) -> io::Result<File> {
    let file = File::from(rustix::fs::memfd_create("vhost-inflight", MemfdFlags::CLOEXEC)?);
    file.set_len(len as u64)?;
    Ok(file)
}

impl Inflight {
    /// Maps a region of this many bytes at `offset` of `file`.
    ///
    /// # Errors
    /// The file is shorter, or the bytes are too few for the queues.
    pub(crate) fn map(
        file: &File,
        (offset, len): (u64, u64),
        queues: u16,
        queue_size: u16,
    ) -> io::Result<Self> {
        let invalid = |reason: &str| io::Error::new(io::ErrorKind::InvalidInput, reason.to_owned());
        let wanted = region_len(queues, queue_size).ok_or_else(|| invalid("impossible queues"))?;
        if len < wanted as u64 {
            return Err(invalid("the in-flight region is too small"));
        }
        Ok(Self { region: Region::of_file(file, offset, wanted)?, queues, queue_size })
    }

    /// Returns true if an access hit missing memory.
    pub(crate) fn is_lost(&self) -> bool {
        self.region.is_lost()
    }
}

/// The part of one queue.
pub(crate) struct QueueLog {
    inflight: Arc<Inflight>,
    start: usize,
    size: u16,
    counter: u64,
}

impl QueueLog {
    /// Takes the part of queue `index`, of `size` entries; `None` if the region has no such part.
    pub(crate) fn new(inflight: &Arc<Inflight>, index: u16, size: u16) -> Option<Self> {
        let fits = index < inflight.queues && size <= inflight.queue_size;
        let start = usize::from(index) * stride(inflight.queue_size);
        fits.then(|| Self { inflight: Arc::clone(inflight), start, size, counter: 0 })
    }

    /// Completes the steps of an interrupted server, and returns the heads of its requests without an answer, in
    /// order of arrival. `used` is the index of the used ring.
    pub(crate) fn recover(&mut self, used: u16) -> Vec<u16> {
        let used_at = offset_of!(QueueHeader, used_idx);
        if self.load::<u16>(offset_of!(QueueHeader, version)) == VERSION {
            // The last answers were published, and the server ended before it noted that.
            let mut head: u16 = self.load(offset_of!(QueueHeader, last_batch_head));
            let published = used.wrapping_sub(self.load(used_at));
            // Bounded: the region is not trusted, and its links may form a loop.
            for _ in 0..published.min(self.size) {
                if head >= self.size {
                    break;
                }
                self.store(self.descriptor(head) + offset_of!(Descriptor, inflight), 0_u8);
                head = self.load(self.descriptor(head) + offset_of!(Descriptor, next));
            }
        }
        self.store(offset_of!(QueueHeader, desc_num), self.size);
        self.store(used_at, used);
        self.store(offset_of!(QueueHeader, version), VERSION);
        let mut heads: Vec<(u64, u16)> = Vec::new();
        for head in 0..self.size {
            let at = self.descriptor(head);
            if self.load::<u8>(at + offset_of!(Descriptor, inflight)) == 1 {
                heads.push((self.load(at + offset_of!(Descriptor, counter)), head));
            }
        }
        heads.sort_unstable();
        // Wraps only for a forged region, and only the order of its next recovery depends on it.
        self.counter = heads.last().map_or(0, |(counter, _)| counter.wrapping_add(1));
        heads.into_iter().map(|(_, head)| head).collect()
    }

    /// Notes a request as taken. `head` is below the size of the queue.
    pub(crate) fn take(&mut self, head: u16) {
        let at = self.descriptor(head);
        // First: a request in flight has the place of its arrival.
        self.store(at + offset_of!(Descriptor, counter), self.counter);
        self.store(at + offset_of!(Descriptor, inflight), 1_u8);
        self.counter = self.counter.wrapping_add(1);
    }

    /// Notes that the answer of a request is the next published one.
    pub(crate) fn publish(&self, head: u16) {
        let last = offset_of!(QueueHeader, last_batch_head);
        let before: u16 = self.load(last);
        self.store(self.descriptor(head) + offset_of!(Descriptor, next), before);
        // After its link: the list is complete whenever a successor reads its head.
        self.store(last, head);
    }

    /// Notes that the answer is published. `used` is the new index of the used ring.
    pub(crate) fn complete(&self, head: u16, used: u16) {
        self.store(self.descriptor(head) + offset_of!(Descriptor, inflight), 0_u8);
        // Last: with an older index a successor repeats only the removal of the mark.
        self.store(offset_of!(QueueHeader, used_idx), used);
    }

    /// Returns true if an access hit missing memory.
    pub(crate) fn is_lost(&self) -> bool {
        self.inflight.is_lost()
    }

    fn descriptor(&self, head: u16) -> usize {
        HEADER_LEN + usize::from(head) * DESCRIPTOR_LEN
    }

    /// A word of the part. The region has all parts, and its words are aligned unless the virtual machine gave an
    /// odd offset; such a region reads as zeroes.
    fn load<T: AtomicAccess + Default>(&self, at: usize) -> T {
        let at = MemoryRegionAddress((self.start + at) as u64);
        self.inflight.region.load(at, Ordering::Acquire).unwrap_or_default()
    }

    fn store<T: AtomicAccess>(&self, at: usize, value: T) {
        let at = MemoryRegionAddress((self.start + at) as u64);
        // As for `load`: the stores have no effect.
        let _ = self.inflight.region.store(value, at, Ordering::Release);
    }
}
