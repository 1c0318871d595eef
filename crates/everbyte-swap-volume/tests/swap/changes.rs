//! Changes of a swap volume with a crash at every point: the volume has the old or the new runs, and
//! each run has exactly one owner.

use std::sync::Arc;

use everbyte_crash::{Closures, Explorer, Failure, Log, Omission, SimMedium, Summary};
use everbyte_media::BLOCK_U64;
use everbyte_plant::plant;
use everbyte_pool::{OpenOptions, Pool, PoolError};
use everbyte_swap_volume::plant::Bug;
use everbyte_swap_volume::{RUN_BYTES, SwapError, SwapOptions, SwapVolume, kinds};

/// Blocks of the pool: space for five runs and for the other structures.
const BLOCKS: u64 = 6 * 512;
const OTHER: &str = "other";
const NAME: &str = "swap";

fn open_pool(medium: &Arc<SimMedium>) -> Result<Arc<Pool<SimMedium>>, PoolError> {
    let options = OpenOptions { capacity_blocks: BLOCKS };
    Pool::open(Arc::clone(medium), kinds(), &options).map(Arc::new)
}

/// A pool with one swap volume of one run. The other volume does not exist yet.
fn new_pool(medium: &Arc<SimMedium>) -> Arc<Pool<SimMedium>> {
    Pool::format(&**medium, 3, [1; 16]).unwrap();
    let pool = open_pool(medium).unwrap();
    drop(create(&pool, OTHER, 1).unwrap());
    pool
}

fn create(
    pool: &Arc<Pool<SimMedium>>,
    name: &str,
    runs: u64,
) -> Result<SwapVolume<SimMedium>, SwapError> {
    SwapVolume::create(pool, name, runs * RUN_BYTES, SwapOptions::default())
}

/// Runs of the volume `name`, or `None` if it does not exist.
fn runs(pool: &Arc<Pool<SimMedium>>, name: &str) -> Result<Option<u64>, String> {
    if pool.volume(name).is_err() {
        return Ok(None);
    }
    let volume = SwapVolume::open(pool, name).map_err(|error| error.to_string())?;
    let runs = volume.runs().len() as u64;
    let size_bytes = volume.volume().size_bytes().map_err(|error| error.to_string())?;
    if size_bytes != runs * RUN_BYTES {
        return Err(format!("{size_bytes} bytes, but {runs} runs"));
    }
    Ok(Some(runs))
}

/// Changes the number of runs of a volume from `before` to `after`. Then allocates the
/// free runs for the other volume. `None` is a volume before its creation or after its deletion. Leaves
/// out `omission`.
fn changed(
    before: Option<u64>,
    after: Option<u64>,
    omission: Option<Omission>,
) -> Result<Summary, Box<Failure>> {
    let scenario = Closures::new(
        |medium, log: &Log<()>| {
            let pool = open_pool(medium).unwrap();
            match (before, after) {
                (None, Some(after)) => drop(create(&pool, NAME, after).unwrap()),
                (Some(before), Some(after)) => {
                    let volume = SwapVolume::open(&pool, NAME).unwrap();
                    if before < after {
                        volume.grow(after * RUN_BYTES).unwrap();
                    } else {
                        let runs = volume.runs();
                        volume.remove(&runs[usize::try_from(after).unwrap()..]).unwrap();
                    }
                }
                _ => pool.delete_volume(NAME).unwrap(),
            }
            log.note(());
            // The freed runs go to another owner immediately.
            let other = SwapVolume::open(&pool, OTHER).unwrap();
            let mut size_bytes = 2 * RUN_BYTES;
            while other.grow(size_bytes).is_ok() {
                size_bytes += RUN_BYTES;
            }
        },
        |medium| open_pool(medium).map_err(|error| error.to_string()),
        |pool, crash| {
            let report = pool.check().map_err(|error| error.to_string())?;
            if !report.problems.is_empty() {
                return Err(format!("{:?}", report.problems));
            }
            let found = runs(&pool, NAME)?;
            let is_done = !crash.events.is_empty();
            if found != after && (is_done || found != before) {
                return Err(format!(
                    "{found:?} runs, where it had {before:?} and was to have {after:?}"
                ));
            }
            runs(&pool, OTHER)?.ok_or("the other volume is gone")?;
            Ok(())
        },
    )
    .medium_len(BLOCKS * BLOCK_U64)
    .label(0..RUN_BYTES, "tables")
    .prepared(|medium| {
        let pool = new_pool(medium);
        if let Some(before) = before {
            drop(create(&pool, NAME, before).unwrap());
        }
    });
    let explorer = Explorer {
        runs_max: 12,
        samples: 4,
        nested_images_max: 1,
        nested_points_max: 2,
        nested_runs_max: 2,
        ..Explorer::default()
    };
    match omission {
        Some(omission) => explorer.explore(&scenario.omit(omission)),
        None => explorer.explore(&scenario),
    }
}

#[test]
fn crashed_change_leaves_old_or_new_runs() {
    for (before, after) in
        [(None, Some(2)), (Some(1), Some(3)), (Some(3), Some(1)), (Some(2), None)]
    {
        let summary = changed(before, after, None).unwrap_or_else(|failure| panic!("{failure}"));
        println!("{before:?} to {after:?}: {summary}");
    }
    let planted = plant(Bug::TableInPlace);
    let found = changed(Some(1), Some(3), None);
    drop(planted);
    let failure = found.expect_err("a table that is changed where it lies");
    assert!(failure.message.contains("table of the swap volume"), "{failure}");
    // A table that is not fenced before the root names it. It lies in the first free blocks behind the
    // two tables.
    let omission = Some(Omission::fence_after_stream("tables"));
    let failure = changed(Some(1), Some(3), omission).expect_err("an omission");
    assert!(failure.message.contains("table of the swap volume"), "{failure}");
}

#[test]
fn oversized_volume_changes_no_state() {
    let medium = Arc::new(SimMedium::new(BLOCKS * BLOCK_U64));
    let pool = new_pool(&medium);
    let free = || pool.info().free_bytes;
    let before = free();
    for size_bytes in [0, 4096, RUN_BYTES + 512, 100 * RUN_BYTES] {
        let made = SwapVolume::create(&pool, NAME, size_bytes, SwapOptions::default());
        let error = made.err().expect("a size that cannot be").to_string();
        assert!(error.contains("2 MiB"), "{error}");
        assert_eq!(free(), before);
    }
    let volume = create(&pool, NAME, 2).unwrap();
    let (had, free_then) = (volume.runs(), free());
    let error = volume.grow(50 * RUN_BYTES).unwrap_err().to_string();
    assert!(error.contains("2 free runs of 2 MiB, and 48 are needed"), "{error}");
    assert!(volume.grow(RUN_BYTES).is_err(), "it has more than that");
    assert_eq!((volume.runs(), free()), (had, free_then));
    assert_eq!(pool.volume_info(volume.volume()).used_bytes, Some(2 * RUN_BYTES + 2 * BLOCK_U64));
    drop(volume);
    pool.delete_volume(NAME).unwrap();
    assert_eq!(free(), before);
    assert!(pool.check().unwrap().is_clean());
}
