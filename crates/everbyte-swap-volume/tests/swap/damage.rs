//! Invalid tables: the error names the place, and the code never panics.

use std::sync::Arc;

use everbyte_crash::SimMedium;
use everbyte_media::{BLOCK_U64, Medium, PoolOffset};
use everbyte_pool::format::{Entry, encode_word};
use everbyte_pool::{OpenOptions, Pool};
use everbyte_swap_volume::{RUN_BYTES, SwapOptions, SwapVolume, kinds};

const BLOCKS: u64 = 5 * 512;

/// Opens a pool with a swap volume of two runs after `damage` has changed its table at the given
/// address. Returns the error text.
fn said(damage: impl FnOnce(&SimMedium, PoolOffset)) -> String {
    let medium = Arc::new(SimMedium::new(BLOCKS * BLOCK_U64));
    let options = OpenOptions { capacity_blocks: BLOCKS };
    Pool::format(&*medium, 2, [1; 16]).unwrap();
    let pool = Arc::new(Pool::open(Arc::clone(&medium), kinds(), &options).unwrap());
    let volume = SwapVolume::create(&pool, "s", 2 * RUN_BYTES, SwapOptions::default()).unwrap();
    let root = Entry::decode(medium.load_word(volume.volume().root_at())).unwrap().unwrap();
    drop((volume, pool));
    damage(&medium, root.block.offset());
    let pool = Arc::new(Pool::open(medium, kinds(), &options).unwrap());
    let problems = pool.check().unwrap().problems.join("; ");
    match SwapVolume::open(&pool, "s") {
        Ok(_) => problems,
        Err(error) => format!("{problems}; {error}"),
    }
}

#[test]
fn invalid_table_is_named() {
    assert_eq!(said(|_, _| {}), "", "a sound one");
    let header = [
        (0, "it does not begin as one"),
        (8, "its checksum is wrong"),
        (16, "its checksum is wrong"),
        (40, "its checksum is wrong"),
        (56, "its checksum is wrong"),
    ];
    for (offset, words) in header {
        let said = said(|medium, at| {
            let word = medium.load_word(at.plus(offset));
            medium.store_word(at.plus(offset), word ^ 4);
        });
        assert!(said.contains(words) && said.contains("table of the swap volume"), "{said}");
    }
    let first = |medium: &SimMedium, at: PoolOffset| medium.load_word(at.plus(BLOCK_U64));
    let in_second = [
        (
            Box::new(|_: &SimMedium, _: PoolOffset| 77u64)
                as Box<dyn Fn(&SimMedium, PoolOffset) -> u64>,
            "check bits",
        ),
        (Box::new(|_, _| encode_word(7)), "no run can begin with block 7"),
        (Box::new(|_, _| encode_word(512 * 4096)), "no run can begin"),
        (Box::new(|_, _| encode_word((1 << 40) - 512)), "no run can begin"),
        (Box::new(first), "belong to someone else"),
    ];
    for (word, words) in in_second {
        let said = said(|medium, at| medium.store_word(at.plus(BLOCK_U64 + 8), word(medium, at)));
        assert!(said.contains(words), "{words}: {said}");
    }
}
