//! Pool images: a small pool is written to, crashes or is closed, is damaged, and is opened again.
//!
//! Oracle. Never a panic. Without damage: the image opens, is clean, and holds contents that
//! `docs/semantics.md` allows after a crash. With damage: opening may fail. But if a pool opens,
//! `check` calls it clean and its data match their checksums, the pool is sound. From then on every
//! byte reads as before or as written since, and `check` stays clean. Unless the damage changed its
//! history, this holds across a second opening, too, and a recovery that crashed and ran again has
//! the result of the first one.

mod damage;
mod life;
mod model;
mod origin;

use std::cell::OnceCell;
use std::sync::Arc;

use arbitrary::Arbitrary;
use everbyte_block::kinds;
use everbyte_media::{BLOCK_U64, Mapped, Medium, PoolOffset};
use everbyte_pool::{OpenOptions, Pool, PoolError};

use damage::Damage;
use life::{Life, Step};
use origin::{ORIGINS, Origin};

/// Blocks of the pool: room for both volumes, with few to spare.
pub(crate) const POOL_BLOCKS: u64 = 72;

/// An image's history: how it is used, damaged and recovered.
#[derive(Debug, Arbitrary)]
struct Story {
    /// Number of the image that it begins with.
    origin: u8,
    /// Operations on the sound pool.
    before: Vec<Step>,
    /// True if the pool is closed then; false if it crashes.
    closed: bool,
    damage: Vec<Damage>,
    /// True if recovery crashes once when it is done.
    recovered_twice: bool,
    /// Operations on the damaged pool.
    after: Vec<Step>,
    /// True if the pool is closed then; false if it crashes.
    closed_after: bool,
}

/// Steps and damages beyond this many are ignored: a long story finds nothing that a short one does
/// not, and takes longer.
const STEPS_MAX: usize = 8;

thread_local! {
    /// The medium, mapped once, because mapping memory costs more than a story.
    static MEDIUM: OnceCell<Arc<Mapped>> = const { OnceCell::new() };
}

/// Plays the story that `bytes` encode.
///
/// # Panics
/// If a promise is broken.
pub fn pool_image(bytes: &[u8]) {
    let Some(story) = crate::story::<Story>(bytes) else { return };
    let medium = MEDIUM.with(|medium| Arc::clone(medium.get_or_init(origin::new_medium)));
    play(&medium, &story);
}

fn play(medium: &Arc<Mapped>, story: &Story) {
    let origin: &Origin = &ORIGINS[usize::from(story.origin) % ORIGINS.len()];
    medium.store(PoolOffset(0), &origin.image);
    // Stories share the origin, and each changes its own copy.
    let mut known = origin.known.clone();
    if !story.before.is_empty() {
        let pool = open(medium).expect("a sound image opens");
        let mut life = Life::sound(&pool, known);
        life.expect_clean();
        life.steps(story.before.iter().take(STEPS_MAX));
        known = life.end(story.closed);
    }
    // After the pool is dropped, as damage meets a medium at rest.
    let damaged = damage::apply(&**medium, story.damage.iter().take(STEPS_MAX));
    let opened = open(medium);
    let pool = match opened {
        Ok(pool) => pool,
        Err(error) => {
            // With damage a refusal is always allowed.
            assert!(damaged.any, "a sound image does not open: {error}");
            return;
        }
    };
    let pool = if story.recovered_twice && !damaged.past {
        // Recovery must be idempotent: it may crash after its last step (docs/crash-model.md,
        // Recovery).
        let first = settled_bytes(medium);
        drop(pool);
        let pool = open(medium).expect("what opened once opens twice");
        assert!(first == settled_bytes(medium), "a second recovery left another image");
        pool
    } else {
        pool
    };
    let mut life =
        if damaged.any { Life::stranger(&pool, damaged.past) } else { Life::sound(&pool, known) };
    if !damaged.any {
        life.expect_clean();
    }
    life.steps(story.after.iter().take(STEPS_MAX));
    // Forged records of epochs to come can change what a second opening recovers.
    let trusted = life.is_sound() && !damaged.past;
    let known = life.end(story.closed_after);
    drop(pool);
    match open(medium) {
        Ok(pool) if trusted => {
            let mut life = Life::sound(&pool, known);
            life.expect_clean();
            drop(life.end(true));
        }
        // Nothing is promised any more. It must still neither panic nor loop.
        Ok(pool) => drop(Life::stranger(&pool, true).end(true)),
        Err(error) => assert!(!trusted, "a pool that was sound does not open again: {error}"),
    }
}

fn open(medium: &Arc<Mapped>) -> Result<Arc<Pool<Mapped>>, PoolError> {
    let options = OpenOptions { capacity_blocks: POOL_BLOCKS };
    let opened = Pool::open(Arc::clone(medium), kinds(), &options).map(Arc::new);
    match &opened {
        // Reports and errors are formatted, because they show numbers from the image.
        Ok(pool) => drop(format!("{:?}", pool.info())),
        Err(error) => drop(error.to_string()),
    }
    opened
}

/// Returns the image without the parts that every opening changes: superblocks and completed
/// epochs.
fn settled_bytes(medium: &Mapped) -> Vec<u8> {
    let mut bytes = vec![0; medium.len() as usize];
    medium.read(PoolOffset(0), &mut bytes);
    let (superblocks, rest) = bytes.split_at_mut(2 * BLOCK_U64 as usize);
    superblocks.fill(0);
    for header in rest.chunks_mut(BLOCK_U64 as usize).take(origin::SLOTS as usize) {
        // The two places of the completed epoch: each recovery advances it.
        header[64..72].fill(0);
        header[128..136].fill(0);
    }
    bytes
}
