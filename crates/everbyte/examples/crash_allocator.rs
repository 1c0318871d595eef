//! Crash-testing an allocator: a bitmap in the medium marks slots as free or used, and names lead
//! to slots. A crash may leave a slot without a name: recovery frees it. A crash must never leave a
//! named slot free: the allocator would hand it out again.
//! `cargo run -p everbyte --example crash_allocator`

#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use everbyte::crash::{Closures, Explorer, Medium, PoolOffset, SimMedium};

const SLOTS: u64 = 4;
const NAMES: u64 = 3;
/// A bit for each slot, set if it is used.
const USED: PoolOffset = PoolOffset(0);

/// The word with the slot of a name: its number plus 1; 0 if it names no slot.
fn name_at(name: u64) -> PoolOffset {
    PoolOffset(64 + 64 * name)
}

fn slot_at(slot: u64) -> PoolOffset {
    PoolOffset(1024 + 64 * slot)
}

fn persist(medium: &SimMedium, at: PoolOffset, word: u64) {
    medium.store_word(at, word);
    medium.flush(at, 8);
    medium.fence().expect("a medium that has not failed");
}

fn slot_of(medium: &SimMedium, name: u64) -> Option<u64> {
    medium.load_word(name_at(name)).checked_sub(1)
}

/// Takes a slot for `value` and gives it a name: used first, then filled, then named.
fn put(medium: &SimMedium, name: u64, value: u64) {
    let used = medium.load_word(USED);
    let slot = (0..SLOTS).find(|slot| used >> slot & 1 == 0).expect("a free slot");
    persist(medium, USED, used | 1 << slot);
    persist(medium, slot_at(slot), value);
    persist(medium, name_at(name), slot + 1);
}

/// Frees the slot of a name. It must have no name before it is free; `sound` is false to see the
/// mistake of freeing it first.
fn remove(medium: &SimMedium, name: u64, sound: bool) {
    let Some(slot) = slot_of(medium, name) else { return };
    if sound {
        persist(medium, name_at(name), 0);
    }
    persist(medium, USED, medium.load_word(USED) & !(1 << slot));
    persist(medium, name_at(name), 0);
}

/// Frees the slots without a name, left by a crash between the steps of `put` or `remove`.
fn recover(medium: &SimMedium) {
    let named = (0..NAMES).filter_map(|name| slot_of(medium, name));
    let named = named.fold(0, |named, slot| named | 1 << slot);
    persist(medium, USED, medium.load_word(USED) & named);
}

/// Fills the slots free after recovery, then checks each name for other bytes than its own.
fn check(medium: &SimMedium) -> Result<(), String> {
    let used = medium.load_word(USED);
    for slot in (0..SLOTS).filter(|slot| used >> slot & 1 == 0) {
        medium.store_word(slot_at(slot), u64::MAX);
    }
    for name in 0..NAMES {
        if let Some(slot) = slot_of(medium, name)
            && medium.load_word(slot_at(slot)) / 10 != name + 1
        {
            return Err(format!("name {name} leads to slot {slot}, which is another's"));
        }
    }
    Ok(())
}

/// Puts values with tens one above the name, and removes one of them.
fn history(sound: bool) -> Closures<'static, (), std::sync::Arc<SimMedium>> {
    Closures::new(
        move |medium, _| {
            put(medium, 0, 10);
            put(medium, 1, 20);
            remove(medium, 0, sound);
            put(medium, 2, 30); // in the slot that name 0 had
            put(medium, 0, 11);
        },
        |medium| {
            recover(medium);
            Ok(std::sync::Arc::clone(medium))
        },
        |medium, _| check(&medium),
    )
    .label(0..8, "bitmap")
    .label(64..256, "names")
    .label(1024..1280, "slots")
}

fn main() {
    let summary = Explorer::default().explore(&history(true));
    println!("in the right order: {}", summary.expect("no slot is named and free"));
    let failure = Explorer::default().explore(&history(false));
    println!("freed first: {}", failure.expect_err("a slot is named and free"));
}
