//! Making caches.

use everbyte::backing::{self, Backing};
use everbyte_cache::{Cache, Mode, Settings, volume_bytes};
use everbyte_control::{NewCache, NewVolume, Refused};
use everbyte_policy::sim;
use everbyte_pool::format::VolumeKind;

use super::{CHANGE_SILENCE, CacheHandle};
use crate::context::{Context, NewBacking};
use crate::device::block_options;
use crate::handle::{Device, Opened};
use crate::refusal::refused;
use crate::size::show_size;

impl CacheHandle {
    /// Makes a cache. Its backing device is opened to see that it is there and how large, and
    /// closed again.
    pub(crate) fn create(
        context: &Context,
        new: &NewVolume,
        conditions: &NewBacking<'_>,
    ) -> Result<Opened, Refused> {
        let wanted = new.cache.as_deref();
        let wanted =
            wanted.ok_or_else(|| Refused::new("a cache needs a backing device".to_owned()))?;
        (conditions.unshared)(None)?;
        let silence_max = context.backing.reconnect_timeout + CHANGE_SILENCE;
        let options =
            backing::Options { rights: conditions.rights.clone(), ..context.backing.clone() };
        let backing = backing::open_within(&wanted.backing, &options, silence_max);
        let backing = backing.map_err(refused)?;
        (conditions.unshared)(Some(&backing))?;
        let settings = settings(wanted, &backing)?;
        check_room(settings.volume_page_bytes_max(), context.pool.info().free_bytes)?;
        let (size_bytes, options) = (volume_bytes(settings.backing_bytes), block_options(new)?);
        let (pool, name) = (&context.pool, &new.name);
        let device = Device::create_as(pool, name, VolumeKind::CACHE, size_bytes, &options);
        let device = device.map_err(refused)?;
        if let Err(error) = Cache::format(&device, &settings) {
            if let Err(error) = pool.delete_volume(name) {
                tracing::warn!(volume = name, %error, "a volume is left over that is no cache");
            }
            return Err(refused(error));
        }
        Ok(Self::opened(context, device))
    }
}

fn settings(wanted: &NewCache, backing: &Backing) -> Result<Settings, Refused> {
    let mode = Mode::ALL.into_iter().find(|mode| mode.name() == wanted.mode);
    let settings = Settings {
        backing: backing.identity.clone(),
        backing_bytes: backing.device.geometry().size_bytes,
        dram_bytes: wanted.dram_bytes,
        scm_bytes: wanted.scm_bytes,
        mode: mode
            .ok_or_else(|| Refused::new(format!("{:?} is no mode of a cache", wanted.mode)))?,
        policy: wanted.policy.parse::<sim::Kind>().map_err(refused)?,
        small_write_bytes: wanted.small_write_bytes,
    };
    settings.check().map_err(refused)?;
    Ok(settings)
}

/// Checks that a cache that may take `needed` bytes has room in `free` bytes.
pub(super) fn check_room(needed: u64, free: u64) -> Result<(), Refused> {
    if needed <= free {
        return Ok(());
    }
    Err(Refused::new(format!(
        "the cache may take {} of the pool: its SCM, as much again as its DRAM, and a sixteenth for \
         pages whose write-back is pending; {} are free: make it smaller or grow the pool",
        show_size(needed),
        show_size(free)
    )))
}
