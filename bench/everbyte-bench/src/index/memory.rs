//! Memory of pools, kept from pool to pool.
//!
//! A file in memory gets a zeroed page at the first touch of the page. The touch takes longer than the creation of a
//! file of 16 KiB, so in new memory a workload measures the system instead of the index. Invariants: a pool in kept
//! memory finds the bytes of the previous pool, as on a device. Two live pools never share memory.

use std::cell::RefCell;
use std::fs::File;
use std::sync::Arc;

use anyhow::Result;
use rustix::fs::{MemfdFlags, memfd_create};

use super::library::Bytes;

/// The memory of the last pool, if its bytes were stored.
#[derive(Default)]
pub(super) struct Memory(RefCell<Option<Kept>>);

struct Kept {
    bytes: u64,
    file: Arc<File>,
}

/// A file in memory without a name, which takes no memory but for what is touched.
///
/// # Errors
/// The system's.
pub(crate) fn sparse_file(bytes: u64) -> Result<File> {
    let file = File::from(memfd_create("everbyte-bench", MemfdFlags::CLOEXEC)?);
    file.set_len(bytes)?;
    Ok(file)
}

impl Memory {
    /// A file for a pool of so many bytes, and the fate of what is written. It is the last pool's if that was as large and
    /// nobody holds its file any more; else that file is let go before `fate` is asked, which looks for free memory.
    ///
    /// # Errors
    /// Those of `fate`; the system's.
    pub(super) fn file(
        &self,
        bytes: u64,
        fate: impl FnOnce() -> Result<Bytes>,
    ) -> Result<(Arc<File>, Bytes)> {
        let mut kept = self.0.borrow_mut();
        *kept = kept.take().filter(|own| own.bytes == bytes && Arc::strong_count(&own.file) == 1);
        if let Some(own) = &*kept {
            return Ok((Arc::clone(&own.file), Bytes::Stored));
        }
        let fate = fate()?;
        let file = Arc::new(sparse_file(bytes)?);
        // A pool that only reserves its blocks touches few pages, far apart.
        if fate == Bytes::Stored {
            *kept = Some(Kept { bytes, file: Arc::clone(&file) });
        }
        Ok((file, fate))
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn memory_is_reused_for_equal_sizes() {
        const SMALL: u64 = 2 << 20;
        let memory = Memory::default();
        let file = |bytes, fate| memory.file(bytes, || Ok(fate)).unwrap();
        let number = |file: &File| file.metadata().unwrap().ino();

        let (first, fate) = file(SMALL, Bytes::Stored);
        assert_eq!((fate, first.metadata().unwrap().len()), (Bytes::Stored, SMALL));
        let (beside, _) = file(SMALL, Bytes::Stored);
        assert_ne!(number(&beside), number(&first), "two pools in one memory");
        let last = number(&beside);
        drop((first, beside));
        let again = memory.file(SMALL, || panic!("there is room already")).unwrap();
        assert_eq!((number(&again.0), again.1), (last, Bytes::Stored));
        drop(again);

        let (large, _) = file(2 * SMALL, Bytes::Stored);
        assert_eq!(large.metadata().unwrap().len(), 2 * SMALL);
        drop(large);
        assert_eq!(file(2 * SMALL + 1, Bytes::Reserved).1, Bytes::Reserved);
        assert!(memory.0.borrow().is_none(), "what is reserved is kept");
        assert!(memory.file(SMALL, || anyhow::bail!("there is none")).is_err());
    }
}
