//! Changes of the pool and its volumes, for control requests.
//!
//! Invariants: a change of a volume shuts its clients out first, unless the volume's kind allows
//! clients beside it; a change that waits delays no user of another volume.

use std::sync::Arc;
use std::time::{Duration, Instant};

use everbyte::backing::{Backing, KnownBacking};
use everbyte_control::{Cause, NewVolume, Refused, Response};
use everbyte_media::{BLOCK_U64, Medium};
use everbyte_path::Rights;
use everbyte_pool::{DeletedVolume, PoolError, is_range_locked};
use parking_lot::MutexGuard;

use crate::context::NewBacking;
use crate::handle::Resize;
use crate::kinds::Kind;
use crate::open_pool::OpenPool;
use crate::quiesce::Alone;
use crate::refusal::refused;
use crate::size::show_size;
use crate::status;
use crate::volumes::OpenVolume;

/// Longest time a change waits for the clients that it disconnects.
const DISCONNECT_TIME_MAX: Duration = Duration::from_secs(5);
/// Longest time a request waits while another cache gets its backing device, and for a look at one.
const BACKINGS_TIME_MAX: Duration = Duration::from_secs(5);

impl OpenPool {
    pub(crate) fn grow(&self, size_bytes: u64) -> Result<Response, Refused> {
        self.check_changing()?;
        let old = self.pool().info().size_bytes;
        if size_bytes <= old {
            return Err(Refused::new(format!(
                "the pool has {} ({old} bytes) already: a pool can only grow",
                show_size(old)
            )));
        }
        let medium = self.pool().medium();
        if size_bytes > medium.len() {
            medium.grow(size_bytes).map_err(|error| Refused::new(error.to_string()))?;
        }
        let size_bytes = self.pool().extend().map_err(refused)?;
        Ok(Response::Grown { size_bytes })
    }

    pub(crate) fn create(&self, new: &NewVolume, client: Option<u32>) -> Result<Response, Refused> {
        self.check_changing()?;
        let kind = Kind::named(&new.kind)?;
        let backing = (kind.backing)(new);
        let _backings = backing.map(|_| self.lock_backings()).transpose()?;
        let volume = self.volumes.make(&new.name, || {
            let rights = self.rights_of_request(client);
            let unshared = |found: Option<&Backing>| {
                self.check_unshared(&new.name, (backing.unwrap_or_default(), &rights), found)
            };
            let conditions = NewBacking { rights: rights.clone(), unshared: &unshared };
            (kind.create)(self.volumes.context(), new, &conditions)
        })?;
        Ok(Response::Volume(self.volume_status(&volume.volume)))
    }

    pub(crate) fn resize(
        &self,
        name: &str,
        resize: &Resize,
        force: bool,
    ) -> Result<Response, Refused> {
        self.check_changing()?;
        let volume = self.volumes.get(name)?;
        // So that no size is compared with one that another request has replaced since.
        let _sizes = matches!(resize, Resize::Size(_)).then(|| self.sizes.lock());
        let old_bytes = volume.volume.size_bytes().map_err(refused)?;
        let shrinks = matches!(resize, Resize::Size(bytes) if *bytes < old_bytes);
        let is_exported = Kind::of(volume.volume.kind()).is_ok_and(|kind| kind.is_exported);
        let mut clients = 0;
        if volume.handle.resizes_beside_clients(resize) && !(shrinks && is_exported) {
            let _op = volume.begin_op(name)?;
            volume.handle.resize(resize, None)?;
            // But for this request.
            clients = volume.quiesce.clients().saturating_sub(1);
        } else {
            let alone = self.shut(&volume, name, "resized", force)?;
            volume.handle.resize(resize, Some(alone))?;
        }
        let mut status = self.volume_status(&volume.volume);
        let has_grown = volume.volume.size_bytes().is_ok_and(|bytes| bytes > old_bytes);
        status.clients_with_old_size = (has_grown && self.is_served()).then_some(clients);
        Ok(Response::Volume(status))
    }

    /// Renames a volume, and the export that it is.
    pub(crate) fn rename(
        &self,
        name: &str,
        new_name: &str,
        force: bool,
    ) -> Result<Response, Refused> {
        self.check_changing()?;
        let volume = self.volumes.get(name)?;
        let by_name = self.only.iter().chain(&self.read_only_exports);
        if by_name.into_iter().any(|given| given == name) {
            return Err(Refused::new(format!(
                "the server was started with the name of volume {name}: end it first"
            )));
        }
        // Who looks for the user of a backing device finds it under one of its names.
        let _backings = volume.handle.has_backing().then(|| self.lock_backings()).transpose()?;
        let alone = self.shut(&volume, name, "renamed", force)?;
        if volume.handle.is_mounted() {
            // Whoever waits for the end of the mount knows it by the name.
            return Err(Refused::new(format!("volume {name} is mounted: unmount it first")));
        }
        if volume.handle.is_lent() {
            return Err(Refused::new(format!("volume {name} is lent to programs: end them first")));
        }
        let renamed = || self.pool().rename_volume(name, new_name).map_err(refused);
        self.volumes.rename(name, new_name, renamed)?;
        drop(alone);
        Ok(Response::Volume(self.volume_status(&volume.volume)))
    }

    pub(crate) fn attach(
        &self,
        name: &str,
        backing: &str,
        force: bool,
        client: Option<u32>,
    ) -> Result<Response, Refused> {
        self.check_changing()?;
        let volume = self.cache(name)?;
        let _backings = self.lock_backings()?;
        let alone = self.shut(&volume, name, "attached", force)?;
        let rights = self.rights_of_request(client);
        let unshared =
            |found: Option<&Backing>| self.check_unshared(name, (backing, &rights), found);
        let conditions = NewBacking { rights: rights.clone(), unshared: &unshared };
        volume.handle.attach(backing, alone, &conditions)?;
        Ok(Response::Volume(self.volume_status(&volume.volume)))
    }

    /// Writes some of a cache's dirty pages back.
    pub(crate) fn write_back(&self, name: &str, force: bool) -> Result<Response, Refused> {
        self.check_changing()?;
        let volume = self.cache(name)?;
        let alone = self.shut(&volume, name, "detached", force)?;
        let dirty_bytes = volume.handle.write_back(alone)?;
        Ok(Response::Drained { dirty_bytes })
    }

    /// Writes all dirty pages of a cache back and deletes it.
    pub(crate) fn detach(&self, name: &str, force: bool) -> Result<Response, Refused> {
        self.check_changing()?;
        let volume = self.cache(name)?;
        let alone = self.shut(&volume, name, "detached", force)?;
        let alone = volume.handle.detach(alone)?;
        self.delete_alone(&volume, alone, |name| self.delete_sound(name))
    }

    pub(crate) fn delete(&self, name: &str, force: bool) -> Result<Response, Refused> {
        self.check_changing()?;
        let volume = match self.volumes.get(name) {
            Err(refused) if force && refused.cause == Some(Cause::VolumeDamaged) => {
                return self.delete_closed(name);
            }
            volume => volume?,
        };
        if force {
            // Those that cannot be sent away lose the volume all the same.
            let alone = volume.shut(name, "deleted", true, None)?;
            self.send_away(&volume, &alone);
            let delete = |name: &str| self.pool().delete_damaged_volume(name);
            return self.delete_alone(&volume, alone, delete);
        }
        let alone = volume.shut(name, "deleted", false, Some(Cause::DeletedUnderClients))?;
        volume.handle.check_deletable()?;
        self.delete_alone(&volume, alone, |name| self.delete_sound(name))
    }

    /// A volume with a backing device.
    fn cache(&self, name: &str) -> Result<Arc<OpenVolume>, Refused> {
        let volume = self.volumes.get(name)?;
        if volume.handle.has_backing() {
            return Ok(volume);
        }
        Err(Refused::new(format!("volume {name} is no cache, so it has no backing device")))
    }

    fn delete_sound(&self, name: &str) -> Result<DeletedVolume, PoolError> {
        self.pool().delete_volume(name).map(|()| DeletedVolume::default())
    }

    /// Deletes a damaged volume without an open handle. The volume cannot be opened during the deletion.
    fn delete_closed(&self, name: &str) -> Result<Response, Refused> {
        let _reserved = self.volumes.reserve_closed(name)?;
        if self.pool().volume(name).map_err(refused)?.kind() == everbyte_swap_volume::SWAP {
            self.check_nothing_lent(name)?;
        }
        let deleted = self.pool().delete_damaged_volume(name).map_err(refused)?;
        Ok(status::deleted(name, deleted))
    }

    /// Refuses to free a swap volume while programs have memory of the pool: of which volume is unknown.
    fn check_nothing_lent(&self, name: &str) -> Result<(), Refused> {
        let data = self.pool().data_bounds();
        let bytes = data.start * BLOCK_U64..data.end * BLOCK_U64;
        // Unknown counts as lent.
        let is_lent = match self.pool().medium().reopen() {
            Ok(Some(file)) => is_range_locked(&file, &bytes).unwrap_or(true),
            Ok(None) => false,
            Err(_) => true,
        };
        if is_lent {
            return Err(Refused::new(format!(
                "programs have memory of the pool, perhaps of volume {name}: end them first"
            )));
        }
        Ok(())
    }

    fn delete_alone(
        &self,
        volume: &OpenVolume,
        alone: Alone,
        delete: impl FnOnce(&str) -> Result<DeletedVolume, PoolError>,
    ) -> Result<Response, Refused> {
        let name = volume.name().to_owned();
        volume.handle.release()?;
        let deleted = delete(&name);
        // Else it was refused, and is as it was.
        if volume.volume.is_gone() {
            volume.handle.abandon();
            self.volumes.remove(&name);
        }
        drop(alone);
        Ok(status::deleted(&name, deleted.map_err(refused)?))
    }

    /// Shuts clients out of a volume, found as `name`, to do `what`; with `force`, disconnects those that it has.
    fn shut(
        &self,
        volume: &OpenVolume,
        name: &str,
        what: &'static str,
        force: bool,
    ) -> Result<Alone, Refused> {
        let alone = volume.shut(name, what, force, Some(Cause::HasClients))?;
        match if force { self.send_away(volume, &alone) } else { 0 } {
            0 => Ok(alone),
            left => Err(Refused::new(format!(
                "{left} clients of volume {} are in the midst of a request that does not end, such \
                 as one to a backing device that is silent; they are disconnected when it does: try \
                 again then",
                volume.name()
            ))),
        }
    }

    /// Disconnects all clients of a volume that is shut, and returns how many are still in a request.
    fn send_away(&self, volume: &OpenVolume, alone: &Alone) -> u64 {
        let deadline = Instant::now() + DISCONNECT_TIME_MAX;
        if volume.quiesce.clients() == 0 {
            return 0;
        }
        for server in self.servers() {
            let left = deadline.saturating_duration_since(Instant::now());
            let disconnected = server.disconnect_export(volume.name(), left);
            tracing::info!(volume = volume.name(), clients = disconnected.ended, "sent away");
        }
        alone.wait_idle(deadline)
    }

    fn lock_backings(&self) -> Result<MutexGuard<'_, ()>, Refused> {
        self.backings.try_lock_for(BACKINGS_TIME_MAX).ok_or_else(|| {
            Refused::new(
                "another cache is being made or attached, and waits for its backing device: try \
                 again"
                    .to_owned(),
            )
        })
    }

    /// The rights with which files and devices that a request names are opened: the client has them as well.
    fn rights_of_request(&self, client: Option<u32>) -> Rights {
        let of_client = match client {
            None | Some(0) => Rights::Own,
            Some(uid) => Rights::of_user(uid),
        };
        self.rights().and(&of_client)
    }

    /// Refuses a backing device for the cache `name` that another cache of the pool has already, or the pool itself.
    fn check_unshared(
        &self,
        name: &str,
        (text, rights): (&str, &Rights),
        found: Option<&Backing>,
    ) -> Result<(), Refused> {
        let found = match found {
            Some(found) => found.known(),
            None => {
                let found = everbyte::backing::look_within(text, rights, BACKINGS_TIME_MAX);
                found.map_err(refused)?
            }
        };
        if let (Some(own), Some(stack)) = (&self.stack, &found.stack)
            && own.shares_bytes_with(stack)
        {
            return Err(Refused::new(format!("{text} shares bytes with the pool itself")));
        }
        let other = self.backing_of(|other, recorded| {
            other != name && everbyte::backing::share_bytes(recorded, &found)
        });
        match other {
            None => Ok(()),
            Some(other) => Err(Refused::new(format!(
                "{text} is the backing device of cache {other}, or shares bytes with it: two caches would \
                 overwrite each other's data; detach that one first, or use another device"
            ))),
        }
    }

    /// The first cache for whose backing device, or for the one that it is being attached to, `is_it` holds.
    pub(crate) fn backing_of(&self, is_it: impl Fn(&str, &KnownBacking) -> bool) -> Option<String> {
        // Those without figures have no backing device, and opening a file system for that may take long.
        let has_figures = |kind| Kind::of(kind).is_ok_and(|kind| kind.has_figures);
        let volumes = self.pool().volumes().into_iter();
        let volumes = volumes.filter(|volume| has_figures(volume.kind()));
        let mut others = volumes.filter_map(|volume| self.volumes.get(volume.name()).ok());
        others
            .find(|volume| {
                let backings = volume.handle.backings();
                backings.iter().any(|backing| is_it(volume.name(), backing))
            })
            .map(|volume| volume.name().to_owned())
    }

    pub(crate) fn check(&self) -> Result<Response, Refused> {
        self.check_open()?;
        let report = self.pool().check().map_err(refused)?;
        Ok(Response::Check(status::check(report)))
    }

    /// Holds no lock while it reads, so that it delays nobody.
    pub(crate) fn scrub(
        &self,
        volume: Option<&str>,
        uid: Option<u64>,
        from: u64,
    ) -> Result<Response, Refused> {
        let Some(name) = volume else {
            return Ok(Response::Scrub(status::scrub(self.pool().scrub(), None)));
        };
        let volume = self.volumes.get(name)?;
        if uid.is_some_and(|uid| volume.volume.descriptor().uid != uid) {
            let reason = format!("another volume has the name {name} now");
            return Err(Refused::new(reason).because(Cause::NoSuchVolume));
        }
        let (report, next) = volume.handle.scrub(from)?;
        Ok(Response::Scrub(status::scrub(report, next)))
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use everbyte_block::BlockOptions;
    use everbyte_control::NewCache;
    use everbyte_device::Fua;
    use everbyte_media::{Mapped, MediaOptions};
    use everbyte_pool::{OpenOptions, Pool};

    use super::*;
    use crate::handle::Device;
    use crate::open_pool::Options;

    /// A pool with a cache `c` of a file in `folder`.
    fn pool_with_cache(folder: &Path) -> OpenPool {
        let medium = Mapped::anonymous(32 << 20, &MediaOptions::new()).unwrap();
        Pool::format(&medium, 8, [1; 16]).unwrap();
        let description = medium.describe();
        let options = OpenOptions { capacity_blocks: 8192 };
        let pool = Pool::open(Arc::new(medium), crate::kinds(), &options).unwrap();
        let pool = OpenPool::new(pool, &folder.join("pool"), description, Options::default());
        let backing = folder.join("backing");
        std::fs::File::create(&backing).unwrap().set_len(8 << 20).unwrap();
        let cache = NewCache {
            backing: backing.to_str().unwrap().to_owned(),
            dram_bytes: 1 << 20,
            scm_bytes: 1 << 20,
            mode: "write-back".to_owned(),
            policy: "everbyte".to_owned(),
            small_write_bytes: 0,
        };
        let new = NewVolume {
            name: "c".to_owned(),
            kind: "cache".to_owned(),
            size_bytes: 0,
            delta: "on".to_owned(),
            checksum: "none".to_owned(),
            threshold_percent: 50,
            log_bytes: None,
            lanes: 1,
            checkpoint_lines: None,
            cache: Some(Box::new(cache)),
            fs: None,
            wipe: false,
        };
        pool.create(&new, None).unwrap();
        pool
    }

    #[test]
    fn whose_backing_device_it_is_is_asked_of_no_volume_without_one() {
        let folder = tempfile::tempdir().unwrap();
        let pool = pool_with_cache(folder.path());
        let options = BlockOptions::default();
        Device::create(pool.pool(), "disk", 1 << 20, &options).map(drop).unwrap();
        assert_eq!(pool.backing_of(|name, _| name == "c").as_deref(), Some("c"));
        assert_eq!(pool.backing_of(|_, _| false), None);
        assert!(pool.volumes.opened("disk").is_none(), "it was opened");
    }

    #[test]
    fn a_volume_that_is_being_deleted_is_given_to_nobody() {
        let folder = tempfile::tempdir().unwrap();
        let pool = pool_with_cache(folder.path());
        let cache = pool.volumes.get("c").unwrap();
        let alone = cache.quiesce.shut("deleted", true).ok().unwrap();
        let refused = pool.volumes.get("c").unwrap().lease("c").err().unwrap().to_string();
        assert!(refused.contains("is being deleted"), "{refused}");
        drop(alone);
        cache.lease("c").unwrap();
    }

    #[test]
    fn a_volume_that_was_renamed_is_not_changed_or_used_by_those_who_found_it_before() {
        let folder = tempfile::tempdir().unwrap();
        let pool = pool_with_cache(folder.path());
        let found = pool.volumes.get("c").unwrap();
        pool.rename("c", "d", false).unwrap();
        let refused = found.shut("c", "deleted", false, None).err().unwrap();
        assert_eq!(refused.cause, Some(Cause::NoSuchVolume));
        assert!(refused.reason.contains("renamed to d"), "{refused}");
        drop(found.shut("d", "deleted", false, None).unwrap());
        assert!(found.lease("c").err().unwrap().reason.contains("renamed to d"));
        found.lease("d").unwrap();
    }

    #[test]
    fn a_cache_that_the_pool_refuses_to_delete_goes_on_with_what_it_has_in_dram() {
        let folder = tempfile::tempdir().unwrap();
        let pool = pool_with_cache(folder.path());
        let cache = pool.volumes.get("c").unwrap();
        let client = cache.lease("c").unwrap();
        client.write(4096, &[7; 9000], Fua::No).unwrap();
        drop(client);
        cache.volume.refuse_changes("the test says so");
        let refused = pool.delete("c", true).unwrap_err().to_string();
        assert!(refused.contains("read-only"), "{refused}");
        assert!(cache.handle.is_ready(), "it was closed");
        assert!(Arc::ptr_eq(&pool.volumes.get("c").unwrap(), &cache), "it was forgotten");
        let mut bytes = [0; 9000];
        cache.lease("c").unwrap().read(4096, &mut bytes).unwrap();
        assert_eq!(bytes, [7; 9000]);
    }
}
