//! The two copies of a volume's descriptor: the choice of the valid copy, the replacement of a descriptor,
//! and the repair of copies left different by a crash.
//!
//! Invariant: while anything is stored to one copy, the other is whole.

use everbyte_media::{MediaError, Medium, PoolOffset};
use zerocopy::IntoBytes;

use crate::format::{Corrupt, DESCRIPTOR_AT, Descriptor, Superblock};
use crate::persist::Dirty;
use crate::readable::check_readable;

/// The descriptor in the header at `header_at`: the first valid copy.
///
/// # Errors
/// The error of the first copy, if both are damaged or cannot be read.
pub(crate) fn read_descriptor<M: Medium>(
    medium: &M,
    sb: &Superblock,
    header_at: PoolOffset,
) -> Result<Descriptor, Corrupt> {
    let [first, second] = read_descriptors(medium, sb, header_at);
    first.or_else(|error| second.map_err(|_| error))
}

/// Both copies of the descriptor in the header at `header_at`.
fn read_descriptors<M: Medium>(
    medium: &M,
    sb: &Superblock,
    header_at: PoolOffset,
) -> [Result<Descriptor, Corrupt>; 2] {
    DESCRIPTOR_AT.map(|offset| {
        let at = header_at.plus(offset);
        let mut bytes = [0; size_of::<Descriptor>()];
        medium.read(at, &mut bytes);
        check_readable(medium, "volume descriptor", at, bytes.len() as u64)?;
        Descriptor::parse(&bytes, at, sb.data_start, sb.size_blocks)
    })
}

/// Replaces a descriptor durably: stores the invalid copy first, so a whole copy exists at every moment.
pub(super) fn store_descriptor<M: Medium>(
    medium: &M,
    sb: &Superblock,
    header_at: PoolOffset,
    descriptor: &Descriptor,
) -> Result<(), super::PoolError> {
    let [first, second] = DESCRIPTOR_AT.map(|at| header_at.plus(at));
    // Before the first store: a failure between the copies would leave two names.
    for at in [first, second] {
        check_readable(medium, "volume descriptor", at, size_of::<Descriptor>() as u64)?;
    }
    let [found, _] = read_descriptors(medium, sb, header_at);
    let order = if found.is_ok() { [second, first] } else { [first, second] };
    for at in order {
        let mut dirty = Dirty::default();
        dirty.store(medium, at, descriptor.as_bytes());
        // Durable before the other copy is touched.
        dirty.flush(medium).fence(medium)?;
    }
    Ok(())
}

/// Makes the copies of a descriptor alike, since a killed process may have left two different ones. Returns
/// the damage of the rewritten copy, if it was damaged.
pub(super) fn mend_descriptor<M: Medium>(
    medium: &M,
    sb: &Superblock,
    header_at: PoolOffset,
) -> Result<Option<Corrupt>, MediaError> {
    let [first, second] = DESCRIPTOR_AT.map(|at| header_at.plus(at));
    let (good, bad_at, bad) = match read_descriptors(medium, sb, header_at) {
        // A crash between the two stores of a renaming. Readers use the first copy, so it wins.
        [Ok(good), Ok(other)] if other != good => (good, second, None),
        [Ok(good), Err(bad)] => (good, second, Some(bad)),
        [Err(bad), Ok(good)] => (good, first, Some(bad)),
        _ => return Ok(None),
    };
    let bytes = good.as_bytes();
    // A store to bad memory would fail the medium.
    if medium.check_range(bad_at, bytes.len() as u64).is_err() {
        return Ok(None);
    }
    let mut dirty = Dirty::default();
    dirty.store(medium, bad_at, bytes);
    dirty.flush(medium).fence(medium)?;
    Ok(bad)
}
