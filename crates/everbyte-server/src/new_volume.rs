//! Requests for new volumes: their words, and the volumes made of them.

use everbyte::block::BlockOptions;
use everbyte::cache::{CacheOptions, Mode, Policy, Rights};
use everbyte::files::{FsOptions, IndexKind};
use everbyte::swap::SwapOptions;
use everbyte::volume::{BLOCK_NAME, CACHE_NAME, FS_NAME, SWAP_NAME};
use everbyte::{Pool, Volume};
use everbyte_control::{NewCache, NewVolume, RequestError};

use crate::request_error::refused;
use crate::words::{CHECKSUM_WORDS, DELTA_WORDS, meaning};

/// Makes a volume. A backing device is opened with no more than these rights.
///
/// # Errors
/// A word or a combination without a meaning; the errors of making the volume.
pub(crate) fn create(pool: &Pool, new: &NewVolume, rights: Rights) -> Result<Volume, RequestError> {
    let (name, size_bytes) = (&new.name, new.size_bytes);
    // An option of another kind is a mistake: without an error it would have no effect.
    if new.cache.is_some() && new.kind != CACHE_NAME {
        return Err(RequestError::new("only caches have a backing device"));
    }
    if new.fs.is_some() && new.kind != FS_NAME {
        return Err(RequestError::new("only file systems have an index"));
    }
    let made = match new.kind.as_str() {
        BLOCK_NAME => {
            pool.create_block_with(name, size_bytes, &block_options(new)?).map(Volume::Block)
        }
        CACHE_NAME => {
            let cache = new.cache.as_deref();
            let cache = cache.ok_or_else(|| RequestError::new("a cache needs a backing device"))?;
            let options = cache_options(cache)?.volume(block_options(new)?).rights(rights);
            let (backing, scm_bytes) = (&cache.backing, cache.scm_bytes);
            pool.create_closed_cache(name, backing, scm_bytes, &options).map(Volume::Cache)
        }
        FS_NAME => pool.create_fs_with(name, size_bytes, &fs_options(new)?).map(Volume::Fs),
        SWAP_NAME => {
            let options = SwapOptions { wipes: new.wipe };
            pool.create_swap_with(name, size_bytes, options).map(Volume::Swap)
        }
        kind => {
            let known = [BLOCK_NAME, CACHE_NAME, FS_NAME, SWAP_NAME].join(" and ");
            return Err(format!("there are no {kind:?} volumes: the kinds are {known}").into());
        }
    };
    made.map_err(refused)
}

fn unknown(what: &str, word: &str) -> String {
    format!("{word:?} is no {what}")
}

fn block_options(new: &NewVolume) -> Result<BlockOptions, RequestError> {
    let delta = meaning(&DELTA_WORDS, &new.delta)
        .ok_or_else(|| unknown("translation setting", &new.delta))?;
    let checksum = meaning(&CHECKSUM_WORDS, &new.checksum)
        .ok_or_else(|| unknown("checksum", &new.checksum))?;
    let options = BlockOptions::new().delta(delta).checksum(checksum);
    let options = options.threshold_percent(new.threshold_percent).lanes(new.lanes);
    let options = with(options, new.log_bytes, BlockOptions::log_bytes);
    Ok(with(options, checkpoint_lines(new), BlockOptions::checkpoint_lines))
}

fn cache_options(wanted: &NewCache) -> Result<CacheOptions, RequestError> {
    let mode = Mode::ALL.into_iter().find(|mode| mode.name() == wanted.mode);
    let mode = mode.ok_or_else(|| unknown("mode of a cache", &wanted.mode))?;
    let policy = wanted.policy.parse::<Policy>().map_err(|error| error.to_string())?;
    let options = CacheOptions::new().mode(mode).policy(policy).dram_bytes(wanted.dram_bytes);
    Ok(options.small_write_bytes(wanted.small_write_bytes))
}

fn fs_options(new: &NewVolume) -> Result<FsOptions, RequestError> {
    // The client is this user or root: the owner matters little to either.
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let options = FsOptions::new().root_uid(uid).root_gid(gid).lanes(new.lanes);
    let options = with(options, new.log_bytes, FsOptions::log_bytes);
    let options = with(options, checkpoint_lines(new), FsOptions::checkpoint_lines);
    let Some(wanted) = new.fs.as_deref() else { return Ok(options) };
    let index = IndexKind::from_name(&wanted.index);
    let options = options.index(index.ok_or_else(|| unknown("index", &wanted.index))?);
    let options = with(options, wanted.index_node_bytes, FsOptions::index_node_bytes);
    let options = with(options, wanted.inodes_max, FsOptions::inodes_max);
    Ok(options.large_tables(wanted.large_tables))
}

/// The options with `value`, if there is one; else their default stays.
fn with<O, T>(options: O, value: Option<T>, set: impl FnOnce(O, T) -> O) -> O {
    match value {
        Some(value) => set(options, value),
        None => options,
    }
}

/// The wanted dirty lines before a checkpoint. Zero counts as no wish.
fn checkpoint_lines(new: &NewVolume) -> Option<u32> {
    new.checkpoint_lines.filter(|lines| *lines > 0)
}
