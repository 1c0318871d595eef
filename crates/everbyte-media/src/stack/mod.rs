//! The objects below a file or device: loop devices, partitions, device-mapper and RAID devices, files.
//!
//! Owns the walk from a descriptor down to the bottom. A stack reports its write protection, its [`Writers`],
//! and the bytes in common with another stack.
//!
//! Invariants: an object without access is recorded as unknown and never left out. A stack is bounded in depth and in
//! size. The walk opens no device for writing and reads no contents.
//!
//! A stack maps a range of bytes down. Partitions and loop devices map it exactly. Below a file, the file system chooses
//! the place of the bytes: the range is the whole device, with an *allocation*. Two allocations of one allocator are
//! disjoint. Logical volumes of one volume group are allocations as well.

mod system;
mod walk;
mod writers;

use std::fs::File;
use std::io;
use std::ops::Range;

pub use writers::{OtherWriters, Writers};

use system::{Node, System};

/// An object of a stack.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Object {
    /// A file, by the device of its file system and its inode.
    File { device: u64, inode: u64 },
    /// A block device or a DAX device, by its number.
    Device { number: u64, is_block: bool },
}

/// A part of an object, given to one user by an allocator.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Allocation {
    /// A file system, a volume group or a partition table.
    allocator: String,
    /// A file, a logical volume or a partition.
    id: String,
    /// The used part of the file, volume or partition.
    range: Range<u64>,
}

impl Allocation {
    /// Returns true if the two have no byte in common.
    fn is_apart_from(&self, other: &Self) -> bool {
        self.allocator == other.allocator
            && (self.id != other.id || !overlap(&self.range, &other.range))
    }
}

fn overlap(one: &Range<u64>, other: &Range<u64>) -> bool {
    one.start < other.end && other.start < one.end
}

/// One object, with the range used by the top of the stack.
#[derive(Clone, Debug)]
struct Layer {
    object: Object,
    /// Name for messages.
    name: String,
    /// The disk's own name. Two paths to one disk have the same name.
    hardware: Option<String>,
    range: Range<u64>,
    allocations: Vec<Allocation>,
    /// The file or the device node; `None` if there is none in this system.
    node: Option<Node>,
    is_read_only: bool,
    /// Hardware, or a file of a file system without a device here, unless that is in memory.
    is_storage: bool,
}

impl Layer {
    /// Returns true if a store to the one may change bytes of the other.
    fn shares_bytes_with(&self, other: &Self) -> bool {
        let is_same_disk = self.hardware.is_some() && self.hardware == other.hardware;
        let are_apart = self
            .allocations
            .iter()
            .any(|own| other.allocations.iter().any(|other| own.is_apart_from(other)));
        (self.object == other.object || is_same_disk)
            && overlap(&self.range, &other.range)
            && !are_apart
    }
}

/// A file or device, and all objects below.
#[derive(Clone, Debug)]
pub struct Stack {
    layers: Vec<Layer>,
    /// The first object without access, in words.
    unknown: Option<String>,
}

impl Stack {
    /// The stack of an open file or device. An `O_PATH` descriptor suffices.
    ///
    /// # Errors
    /// The system's: the descriptor itself cannot be inspected.
    pub fn of(file: &File) -> io::Result<Self> {
        walk::walk(&System::real(), file)
    }

    /// Returns true if a store to the one may change bytes of the other. Unknown objects are ignored.
    #[must_use]
    pub fn shares_bytes_with(&self, other: &Self) -> bool {
        self.layers.iter().any(|own| other.layers.iter().any(|found| own.shares_bytes_with(found)))
    }

    /// The write protection of a device of the stack, in words. A device can be writable above a protected device.
    #[must_use]
    pub fn write_protection(&self) -> Option<String> {
        let protected = self.layers.iter().find(|layer| layer.is_read_only)?;
        Some(format!("{} is write-protected", protected.name))
    }

    /// Returns true if stores reach a disk or another machine. A loop device over a file of a tmpfs is in
    /// memory alone. An uninspected part counts as a disk.
    #[must_use]
    pub fn reaches_storage(&self) -> bool {
        self.unknown.is_some() || self.layers.iter().any(|layer| layer.is_storage)
    }

    /// The users with write access to the bytes.
    #[must_use]
    pub fn writers(&self) -> Writers {
        let mut writers = Writers::default();
        for layer in &self.layers {
            if let Some(node) = &layer.node {
                writers.add(&layer.name, node);
            }
        }
        if let Some(unknown) = &self.unknown {
            writers.add_crowd(unknown.clone());
        }
        writers
    }
}

#[cfg(test)]
mod tests;
