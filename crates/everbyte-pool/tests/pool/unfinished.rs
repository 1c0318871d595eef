//! Threads that panic during a write: no later checkpoint makes a part of it durable.

use std::panic::{AssertUnwindSafe, catch_unwind};

use everbyte_media::{Mapped, Medium, PoolOffset};
use everbyte_pool::format::WordItem;
use everbyte_pool::{Volume, WriteError};

use crate::{pool_with_volume, reopened, set};

/// Moment of the panic: before the commit, or after some of the stores.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Moment {
    Joined,
    Recorded,
    HalfStored,
}

/// Changes two words, but panics.
fn panic_in_write(volume: &Volume<Mapped>, table: PoolOffset, moment: Moment) {
    let result = catch_unwind(AssertUnwindSafe(|| {
        let mut writer = volume.join().unwrap();
        let _block = writer.alloc().unwrap();
        assert_ne!(moment, Moment::Joined, "the planned panic");
        let items = [(8, 1), (16, 2)].map(|(at, old)| WordItem { target: table.0 + at, old });
        writer.log_words(&items).unwrap();
        assert_ne!(moment, Moment::Recorded, "the planned panic");
        let mut committed = writer.commit().unwrap();
        committed.store_word(table.plus(8), 101);
        panic!("the planned panic");
    }));
    assert!(result.is_err());
}

#[test]
fn panicked_write_is_never_durable() {
    for moment in [Moment::Joined, Moment::Recorded, Moment::HalfStored] {
        for lanes in [1, 2] {
            let (pool, volume, table) = pool_with_volume(lanes);
            set(&volume, table.plus(8), 1);
            set(&volume, table.plus(16), 2);
            volume.flush().unwrap();
            set(&volume, table.plus(24), 3);
            panic_in_write(&volume, table, moment);
            for round in 0..2 {
                let error = volume.flush().unwrap_err();
                assert!(matches!(error, WriteError::Unfinished), "{moment:?}, {round}: {error}");
                let error = volume.join().err().unwrap().to_string();
                assert!(error.contains("panicked"), "{error}");
            }
            assert!(volume.begin_group().is_err());
            let error = pool.close().unwrap_err().to_string();
            assert!(error.contains("volume v") && error.contains("panicked"), "{error}");
            // A block that it took may be named by a word that it stored.
            let free = pool.allocator().free_blocks();
            assert!(pool.take_run("all there is", free + 1).is_err());
            assert_eq!(pool.allocator().free_blocks(), free);
            let pool = reopened(&pool);
            let value = |at| pool.medium().load_word(table.plus(at));
            assert_eq!((value(8), value(16), value(24)), (1, 2, 0), "{moment:?}");
            let volume = pool.volume("v").unwrap();
            set(&volume, table.plus(8), 5);
            volume.flush().unwrap();
        }
    }
}

#[test]
fn write_during_unwinding_works() {
    struct WritesAtTheEnd<'v>(&'v Volume<Mapped>, PoolOffset);
    impl Drop for WritesAtTheEnd<'_> {
        fn drop(&mut self) {
            set(self.0, self.1, 7);
        }
    }
    let (_pool, volume, table) = pool_with_volume(1);
    let result = catch_unwind(AssertUnwindSafe(|| {
        let _writes = WritesAtTheEnd(&volume, table);
        panic!("the planned panic");
    }));
    assert!(result.is_err());
    volume.flush().unwrap();
    assert_eq!(volume.medium().load_word(table), 7);
}
