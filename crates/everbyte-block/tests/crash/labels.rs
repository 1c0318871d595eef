//! Names for the ranges of a pool, for the reports of the crash explorer.
//!
//! Owns nothing: the names follow from the superblock and the volume table of an image. Volumes created later
//! by a workload have only their header's name.

use everbyte_crash::{Labels, PoolOffset};
use everbyte_pool::format::{self, Descriptor, SUPERBLOCK_COPIES, Superblock};

const BLOCK: u64 = 4096;
/// The name of blocks and maps of all volumes, and of unused blocks.
const DATA: &str = "data";

fn part(image: &[u8], at: u64) -> &[u8] {
    &image[usize::try_from(at).unwrap()..]
}

fn header(mut labels: Labels, at: u64, name: &str) -> Labels {
    let words = [
        (format::STATE_AT, "state"),
        (format::COMPLETED_A_AT, "completed, first"),
        (format::COMPLETED_B_AT, "completed, second"),
        (format::ROOT_AT, "root"),
        (format::SIZE_AT, "size"),
        (format::CHECKSUM_ROOT_AT, "root of checksums"),
    ];
    for (offset, word) in words {
        labels = labels.with(at + offset..at + offset + 8, format!("{word} of {name}"));
    }
    for offset in format::DESCRIPTOR_AT {
        let end = at + offset + size_of::<Descriptor>() as u64;
        labels = labels.with(at + offset..end, format!("descriptor of {name}"));
    }
    labels.with(at..at + BLOCK, format!("header of {name}"))
}

fn log(mut labels: Labels, descriptor: &Descriptor) -> Labels {
    let half_bytes = u64::from(descriptor.half_blocks) * BLOCK;
    for half in 0..2 * u64::from(descriptor.lanes) {
        let at = descriptor.log_start * BLOCK + half * half_bytes;
        let name = format!("log of {}, lane {}, half {}", descriptor.name(), half / 2, half % 2);
        labels = labels.with(at..at + half_bytes, name);
    }
    labels
}

/// The names for a pool's image.
pub(crate) fn of(image: &[u8]) -> Labels {
    let superblock = Superblock::parse(image, PoolOffset(0), image.len() as u64).unwrap();
    let data = superblock.data_start * BLOCK..superblock.size_blocks * BLOCK;
    let mut labels = Labels::default().with(data, DATA);
    for (at, name) in SUPERBLOCK_COPIES.iter().zip(["superblock, first", "superblock, second"]) {
        labels = labels.with(at.0..at.0 + BLOCK, name);
    }
    for slot in 0..superblock.table_slots {
        let at = (superblock.table_start + slot) * BLOCK;
        let from = at + format::DESCRIPTOR_AT[0];
        let (start, end) = (superblock.data_start, superblock.size_blocks);
        match Descriptor::parse(part(image, from), PoolOffset(from), start, end) {
            Ok(descriptor) => {
                labels = header(labels, at, descriptor.name());
                labels = log(labels, &descriptor);
            }
            Err(_) => labels = header(labels, at, &format!("slot {slot}")),
        }
    }
    labels
}
