//! Changes of the pool and its volumes, for control requests.
//!
//! Invariants: a change of a volume disconnects its clients first, unless the volume's kind allows
//! clients during a change. If a change waits, it delays no user of another volume.

use std::sync::Arc;
use std::time::{Duration, Instant};

use everbyte::cache::Rights;
use everbyte::{CacheVolume, Error, Volume};
use everbyte_control::{Cause, NewVolume, RequestError, Response};

use crate::new_volume;
use crate::open_pool::OpenPool;
use crate::quiesce::ExclusiveGuard;
use crate::request_error::refused;
use crate::resize::{Resize, holding};
use crate::status;
use crate::volumes::OpenVolume;

/// Longest time a change waits for the clients it disconnects.
const DISCONNECT_TIME_MAX: Duration = Duration::from_secs(5);

impl OpenPool {
    pub(crate) fn grow(&self, size_bytes: u64) -> Result<Response, RequestError> {
        self.check_changing()?;
        Ok(Response::Grown { size_bytes: self.pool.grow(size_bytes).map_err(refused)? })
    }

    pub(crate) fn create(
        &self,
        new: &NewVolume,
        client: Option<u32>,
    ) -> Result<Response, RequestError> {
        self.check_changing()?;
        let rights = self.rights_of_request(client);
        let volume =
            self.volumes.make(&new.name, || new_volume::create(&self.pool, new, rights))?;
        Ok(Response::Volume(self.status_of(&volume)))
    }

    pub(crate) fn resize(
        &self,
        name: &str,
        resize: &Resize,
        force: bool,
    ) -> Result<Response, RequestError> {
        self.check_changing()?;
        let volume = self.volumes.get(name)?;
        // The lock keeps another request from replacing the compared size.
        let _sizes = matches!(resize, Resize::Size(_)).then(|| self.sizes.lock());
        let old_bytes = volume.volume.size_bytes().map_err(refused)?;
        let shrinks = matches!(resize, Resize::Size(bytes) if *bytes < old_bytes);
        let is_exported = !matches!(volume.volume, Volume::Fs(_));
        let mut clients = 0;
        if resize.is_beside_clients(&volume.volume) && !(shrinks && is_exported) {
            let _op = volume.begin_op(name)?;
            resize.apply(&volume.volume, None).map_err(refused)?;
            // But for this request.
            clients = volume.quiesce.clients().saturating_sub(1);
        } else {
            let guard = self.lock_exclusive(&volume, name, "resized", force)?;
            resize.apply(&volume.volume, Some(guard)).map_err(refused)?;
        }
        let mut status = self.status_of(&volume);
        let has_grown = volume.volume.size_bytes().is_ok_and(|bytes| bytes > old_bytes);
        status.clients_with_old_size = (has_grown && self.is_served()).then_some(clients);
        Ok(Response::Volume(status))
    }

    /// Renames a volume and its export.
    pub(crate) fn rename(
        &self,
        name: &str,
        new_name: &str,
        force: bool,
    ) -> Result<Response, RequestError> {
        self.check_changing()?;
        let volume = self.volumes.get(name)?;
        let by_name = self.only.iter().chain(&self.read_only_exports);
        if by_name.into_iter().any(|given| given == name) {
            return Err(RequestError::new(format!(
                "the server was started with the name of volume {name}: end it first"
            )));
        }
        let guard = self.lock_exclusive(&volume, name, "renamed", force)?;
        if volume.is_mounted() {
            // A client waiting for the end of the mount knows it by the name.
            return Err(RequestError::new(format!("volume {name} is mounted: unmount it first")));
        }
        if volume.is_lent() {
            return Err(RequestError::new(format!(
                "volume {name} is lent to programs: end them first"
            )));
        }
        let renamed = || self.pool.rename(name, new_name).map_err(refused);
        self.volumes.rename(name, new_name, renamed)?;
        drop(guard);
        Ok(Response::Volume(self.status_of(&volume)))
    }

    pub(crate) fn attach(
        &self,
        name: &str,
        backing: &str,
        force: bool,
        client: Option<u32>,
    ) -> Result<Response, RequestError> {
        self.check_changing()?;
        let volume = self.volumes.get(name)?;
        let cache = cache_in(&volume)?;
        let guard = Arc::new(self.lock_exclusive(&volume, name, "attached", force)?);
        let options = holding(&guard).rights(self.rights_of_request(client));
        cache.attach_with(backing, &options).map_err(refused)?;
        Ok(Response::Volume(self.status_of(&volume)))
    }

    /// Writes some of a cache's dirty pages back.
    pub(crate) fn write_back(&self, name: &str, force: bool) -> Result<Response, RequestError> {
        self.check_changing()?;
        let volume = self.volumes.get(name)?;
        let cache = cache_in(&volume)?;
        let guard = Arc::new(self.lock_exclusive(&volume, name, "detached", force)?);
        let dirty_bytes = cache.write_back_part(&holding(&guard)).map_err(refused)?;
        Ok(Response::Drained { dirty_bytes })
    }

    /// Writes all dirty pages of a cache back and deletes it.
    pub(crate) fn detach(&self, name: &str, force: bool) -> Result<Response, RequestError> {
        self.check_changing()?;
        let volume = self.volumes.get(name)?;
        let cache = cache_in(&volume)?;
        let guard = Arc::new(self.lock_exclusive(&volume, name, "detached", force)?);
        cache.drain_with(&holding(&guard)).map_err(refused)?;
        self.delete_exclusive(&volume, false)
    }

    pub(crate) fn delete(&self, name: &str, force: bool) -> Result<Response, RequestError> {
        self.check_changing()?;
        let volume = match self.volumes.get(name) {
            Err(refused) if force && refused.cause == Some(Cause::VolumeDamaged) => {
                return self.delete_closed(name);
            }
            volume => volume?,
        };
        let cause = (!force).then_some(Cause::DeletedUnderClients);
        let guard = volume.lock_exclusive(name, "deleted", force, cause)?;
        if force {
            // If a client cannot be disconnected, it loses the volume all the same.
            self.send_away(&volume, &guard);
        } else {
            volume.volume.check_deletable().map_err(refused)?;
        }
        self.delete_exclusive(&volume, force)
    }

    /// Deletes a damaged volume without an open handle. The volume cannot be opened during the deletion.
    fn delete_closed(&self, name: &str) -> Result<Response, RequestError> {
        let _reserved = self.volumes.reserve_closed(name)?;
        Ok(status::deleted(name, self.pool.delete_damaged(name).map_err(refused)?))
    }

    /// Deletes a volume locked by the caller.
    fn delete_exclusive(&self, volume: &OpenVolume, force: bool) -> Result<Response, RequestError> {
        let name = volume.name().to_owned();
        if let Some(mounts) = &volume.mounts {
            mounts.check_unmounted()?;
        }
        let deleted = volume.volume.delete(force);
        // Otherwise the deletion was rejected, and the volume is unchanged.
        if volume.volume.is_gone() {
            self.volumes.remove(&name);
        }
        Ok(status::deleted(&name, deleted.map_err(refused)?))
    }

    /// Locks the volume found as `name` against clients, to do `what`. With `force`, disconnects
    /// its present clients.
    fn lock_exclusive(
        &self,
        volume: &OpenVolume,
        name: &str,
        what: &'static str,
        force: bool,
    ) -> Result<ExclusiveGuard, RequestError> {
        let guard = volume.lock_exclusive(name, what, force, Some(Cause::HasClients))?;
        match if force { self.send_away(volume, &guard) } else { 0 } {
            0 => Ok(guard),
            left => Err(RequestError::new(format!(
                "{left} clients of volume {} are in the midst of a request that does not end, such \
                 as one to a backing device that is silent; they are disconnected when it does: try \
                 again then",
                volume.name()
            ))),
        }
    }

    /// Disconnects all clients of a locked volume, and returns the number of clients still in a
    /// request.
    fn send_away(&self, volume: &OpenVolume, guard: &ExclusiveGuard) -> u64 {
        let deadline = Instant::now() + DISCONNECT_TIME_MAX;
        if volume.quiesce.clients() == 0 {
            return 0;
        }
        for server in self.servers() {
            let left = deadline.saturating_duration_since(Instant::now());
            let disconnected = server.disconnect_export(volume.name(), left);
            tracing::info!(volume = volume.name(), clients = disconnected.ended, "sent away");
        }
        guard.wait_idle(deadline)
    }

    /// The rights to open files and devices named by a request: the client has them as well.
    fn rights_of_request(&self, client: Option<u32>) -> Rights {
        let of_client = match client {
            None | Some(0) => Rights::Own,
            Some(uid) => Rights::of_user(uid),
        };
        self.pool.rights().and(&of_client)
    }

    pub(crate) fn check(&self) -> Result<Response, RequestError> {
        self.check_open()?;
        Ok(Response::Check(status::check(self.pool.check().map_err(refused)?)))
    }

    /// Holds no lock during the reads: it delays no other request.
    pub(crate) fn scrub(
        &self,
        volume: Option<&str>,
        uid: Option<u64>,
        from: u64,
    ) -> Result<Response, RequestError> {
        let Some(name) = volume else {
            return Ok(Response::Scrub(status::scrub(self.pool.scrub(), None)));
        };
        let volume = self.volumes.get(name)?;
        if uid.is_some_and(|uid| volume.volume.uid() != uid) {
            let reason = format!("another volume has the name {name} now");
            return Err(RequestError::new(reason).because(Cause::NoSuchVolume));
        }
        let (report, next) = volume.volume.scrub(from).map_err(refused)?;
        Ok(Response::Scrub(status::scrub(report, next)))
    }
}

/// The cache in a volume.
fn cache_in(volume: &OpenVolume) -> Result<&CacheVolume, RequestError> {
    match &volume.volume {
        Volume::Cache(cache) => Ok(cache),
        other => Err(refused(Error::NotACache { volume: other.name().to_owned() })),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use everbyte::Pool;
    use everbyte_control::NewCache;
    use everbyte_device::Fua;

    use super::*;
    use crate::open_pool::Options;

    /// A pool with a cache `c` of a file in `folder`.
    fn pool_with_cache(folder: &Path) -> OpenPool {
        let pool = Pool::create(folder.join("pool"), 32 << 20).unwrap();
        let pool = OpenPool::new(pool, Options::default());
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
    fn volume_in_deletion_has_no_clients() {
        let folder = tempfile::tempdir().unwrap();
        let pool = pool_with_cache(folder.path());
        let cache = pool.volumes.get("c").unwrap();
        let guard = cache.quiesce.lock_exclusive("deleted", true).ok().unwrap();
        let refused = pool.volumes.get("c").unwrap().lease("c").err().unwrap().to_string();
        assert!(refused.contains("is being deleted"), "{refused}");
        drop(guard);
        cache.lease("c").unwrap();
    }

    #[test]
    fn renamed_volume_refuses_old_name() {
        let folder = tempfile::tempdir().unwrap();
        let pool = pool_with_cache(folder.path());
        let found = pool.volumes.get("c").unwrap();
        pool.rename("c", "d", false).unwrap();
        let refused = found.lock_exclusive("c", "deleted", false, None).err().unwrap();
        assert_eq!(refused.cause, Some(Cause::NoSuchVolume));
        assert!(refused.reason.contains("renamed to d"), "{refused}");
        drop(found.lock_exclusive("d", "deleted", false, None).unwrap());
        assert!(found.lease("c").err().unwrap().reason.contains("renamed to d"));
        found.lease("d").unwrap();
    }

    #[test]
    fn refused_deletion_keeps_cache_dram() {
        let folder = tempfile::tempdir().unwrap();
        let pool = pool_with_cache(folder.path());
        let cache = pool.volumes.get("c").unwrap();
        let client = cache.lease("c").unwrap();
        client.write(4096, &[7; 9000], Fua::No).unwrap();
        drop(client);
        pool.pool.engine().volume("c").unwrap().refuse_changes("the test says so");
        let refused = pool.delete("c", true).unwrap_err().to_string();
        assert!(refused.contains("read-only"), "{refused}");
        assert!(cache.is_ready(), "it was closed");
        assert!(Arc::ptr_eq(&pool.volumes.get("c").unwrap(), &cache), "it was forgotten");
        let mut bytes = [0; 9000];
        cache.lease("c").unwrap().read(4096, &mut bytes).unwrap();
        assert_eq!(bytes, [7; 9000]);
    }
}
