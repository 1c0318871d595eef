//! Changes of the pool and its volumes, for control requests.
//!
//! Invariants: a change of a volume disconnects its clients first, unless the volume's kind allows
//! clients during a change. If a change waits, it delays no user of another volume.

use std::sync::Arc;
use std::time::{Duration, Instant};

use everbyte::cache::{ChangeOptions, NewSizes, Rights};
use everbyte::{CacheVolume, Error, Volume};
use everbyte_control::{Answer, Cause, NewVolume, RequestError, Response};

use crate::new_volume;
use crate::open_pool::OpenPool;
use crate::quiesce::ExclusiveGuard;
use crate::request_error::{about, refused};
use crate::status;
use crate::volumes::OpenVolume;

/// Longest time a change waits for the clients it disconnects.
const DISCONNECT_TIME_MAX: Duration = Duration::from_secs(5);

impl OpenPool {
    pub(crate) fn grow(&self, size_bytes: u64) -> Answer {
        self.check_changing()?;
        Ok(Response::Grown { size_bytes: self.pool.grow(size_bytes).map_err(refused)? })
    }

    pub(crate) fn create(&self, new: &NewVolume, client: Option<u32>) -> Answer {
        self.check_changing()?;
        let rights = self.rights_of_request(client);
        let volume =
            self.volumes.make(&new.name, || new_volume::create(&self.pool, new, rights))?;
        Ok(Response::Volume(self.status_of(&volume)))
    }

    /// Changes the volume `name`. Each error names it.
    fn change(&self, name: &str, change: impl FnOnce(&OpenVolume) -> Answer) -> Answer {
        let volume = self.check_changing().and_then(|()| self.volumes.get(name));
        volume.and_then(|volume| change(&volume)).map_err(|refused| about(name, refused))
    }

    /// Changes the cache `name` without clients, to do `what`. With `force`, disconnects them.
    fn change_cache(
        &self,
        name: &str,
        what: &'static str,
        force: bool,
        change: impl FnOnce(&OpenVolume, &CacheVolume, ChangeOptions) -> Answer,
    ) -> Answer {
        self.change(name, |volume| {
            let Volume::Cache(cache) = &volume.volume else {
                return Err(refused(Error::NotACache { volume: volume.name().to_owned() }));
            };
            let guard = self.lock_exclusive(volume, name, what, force)?;
            // With a silent backing device the change outlives this request, and clients stay out.
            change(volume, cache, ChangeOptions::default().hold(Arc::new(guard)))
        })
    }

    pub(crate) fn resize(&self, name: &str, size_bytes: u64, force: bool) -> Answer {
        self.change(name, |volume| {
            // The lock keeps another request from replacing the compared size.
            let _sizes = self.sizes.lock();
            let old_bytes = volume.volume.size_bytes().map_err(refused)?;
            let excludes_clients = match volume.volume {
                // Mounts follow the size.
                Volume::Fs(_) => false,
                // NBD clients would use bytes beyond a smaller size. A cache refuses each size.
                Volume::Block(_) | Volume::Cache(_) => size_bytes < old_bytes,
                // A client's device has all runs.
                Volume::Swap(_) => true,
            };
            let clients = if excludes_clients {
                let _guard = self.lock_exclusive(volume, name, "resized", force)?;
                volume.volume.resize(size_bytes).map_err(refused)?;
                0
            } else {
                // Until the resize ends, no other change of the volume begins.
                let _op = volume.begin_op(name)?;
                volume.volume.resize(size_bytes).map_err(refused)?;
                // But for this request.
                volume.quiesce.clients().saturating_sub(1)
            };
            Ok(self.resized(volume, old_bytes, clients))
        })
    }

    /// Gives a cache other sizes.
    pub(crate) fn resize_cache(&self, name: &str, sizes: NewSizes, force: bool) -> Answer {
        self.change_cache(name, "resized", force, |volume, cache, options| {
            let old_bytes = volume.volume.size_bytes().map_err(refused)?;
            cache.resize_with(sizes, &options).map_err(refused)?;
            // The change had no clients, so none keeps the old size.
            Ok(self.resized(volume, old_bytes, 0))
        })
    }

    /// The answer about a resized volume of formerly `old_bytes`. Its `clients` see the old size.
    fn resized(&self, volume: &OpenVolume, old_bytes: u64, clients: u64) -> Response {
        let mut status = self.status_of(volume);
        let has_grown = volume.volume.size_bytes().is_ok_and(|bytes| bytes > old_bytes);
        status.clients_with_old_size = (has_grown && self.is_served()).then_some(clients);
        Response::Volume(status)
    }

    /// Renames a volume and its export.
    pub(crate) fn rename(&self, name: &str, new_name: &str, force: bool) -> Answer {
        self.change(name, |volume| {
            // Under another name it would not be the export of the server's command line.
            let mut by_name = self.options.only.iter().chain(&self.options.read_only_exports);
            if by_name.any(|given| given == name) {
                let by_name = "the server was started with the name of volume";
                return Err(format!("{by_name} {name}: end it first").into());
            }
            let _guard = self.lock_exclusive(volume, name, "renamed", force)?;
            // A client waiting for the end of the mount knows it by the name.
            volume.check_unmounted()?;
            // Programs ask for more memory by the name.
            if volume.is_lent() {
                return Err(format!("volume {name} is lent to programs: end them first").into());
            }
            self.volumes.rename(name, new_name)?;
            Ok(Response::Volume(self.status_of(volume)))
        })
    }

    /// Attaches a cache to its backing device at `text`, opened for a client of the user `uid`.
    pub(crate) fn attach(&self, name: &str, text: &str, force: bool, uid: Option<u32>) -> Answer {
        self.change_cache(name, "attached", force, |volume, cache, options| {
            let options = options.rights(self.rights_of_request(uid));
            cache.attach_with(text, &options).map_err(refused)?;
            Ok(Response::Volume(self.status_of(volume)))
        })
    }

    /// Writes some of a cache's dirty pages back.
    pub(crate) fn write_back(&self, name: &str, force: bool) -> Answer {
        self.change_cache(name, "detached", force, |_, cache, options| {
            let dirty_bytes = cache.write_back_part(&options).map_err(refused)?;
            Ok(Response::Drained { dirty_bytes })
        })
    }

    /// Writes all dirty pages of a cache back and deletes it.
    pub(crate) fn detach(&self, name: &str, force: bool) -> Answer {
        self.change_cache(name, "detached", force, |volume, cache, options| {
            cache.drain_with(&options).map_err(refused)?;
            // Clients are still locked out: no write comes between.
            self.delete_exclusive(volume, false)
        })
    }

    pub(crate) fn delete(&self, name: &str, force: bool) -> Answer {
        let found = self.check_changing().and_then(|()| self.volumes.get(name));
        let deleted = match found {
            Err(refused) if force && refused.cause == Some(Cause::VolumeDamaged) => {
                self.delete_closed(name)
            }
            found => found.and_then(|volume| self.delete_open(&volume, name, force)),
        };
        deleted.map_err(|refused| about(name, refused))
    }

    fn delete_open(&self, volume: &OpenVolume, name: &str, force: bool) -> Answer {
        let cause = (!force).then_some(Cause::DeletedUnderClients);
        let guard = volume.lock_exclusive(name, "deleted", force, cause)?;
        if force {
            // If a client cannot be disconnected, it loses the volume all the same.
            self.send_away(volume, &guard);
        } else {
            // Under the lock: no client writes between the check and the deletion.
            volume.volume.check_deletable().map_err(refused)?;
        }
        self.delete_exclusive(volume, force)
    }

    /// Deletes a damaged volume without an open handle.
    fn delete_closed(&self, name: &str) -> Answer {
        // A reserved name cannot be opened during the deletion.
        let _reserved = self.volumes.reserve_closed(name)?;
        Ok(status::deleted(name, self.pool.delete_damaged(name).map_err(refused)?))
    }

    /// Deletes a volume locked by the caller.
    fn delete_exclusive(&self, volume: &OpenVolume, force: bool) -> Answer {
        // Users keep their mount, even against force.
        volume.check_unmounted()?;
        let name = volume.name().to_owned();
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
            // The guard ends here, so the remaining clients finish and others may connect.
            left => Err(format!(
                "{left} clients of volume {} are in the midst of a request that does not end, such \
                 as one to a backing device that is silent; they are disconnected when it does: try \
                 again then",
                volume.name()
            )
            .into()),
        }
    }

    /// Disconnects all clients of a locked volume, and returns the number of clients still in a
    /// request.
    fn send_away(&self, volume: &OpenVolume, guard: &ExclusiveGuard) -> u64 {
        let deadline = Instant::now() + DISCONNECT_TIME_MAX;
        if volume.quiesce.clients() == 0 {
            return 0;
        }
        // All servers share the deadline: their number does not lengthen the wait.
        for server in self.servers().into_iter().flatten() {
            let left = deadline.saturating_duration_since(Instant::now());
            let disconnected = server.disconnect_export(volume.name(), left);
            tracing::info!(volume = volume.name(), clients = disconnected.ended, "sent away");
        }
        for server in self.vhosts().iter().filter(|server| server.disk() == volume.name()) {
            server.disconnect(None, deadline.saturating_duration_since(Instant::now()));
        }
        guard.wait_idle(deadline)
    }

    /// The rights to open files and devices named by a request: the client has them as well.
    fn rights_of_request(&self, client: Option<u32>) -> Rights {
        let of_client = match client {
            // A request of this process or of root is limited by the pool alone.
            None | Some(0) => Rights::Own,
            Some(uid) => Rights::of_user(uid),
        };
        self.pool.rights().and(&of_client)
    }

    pub(crate) fn check(&self) -> Answer {
        self.check_open()?;
        Ok(status::check(self.pool.check().map_err(refused)?))
    }

    /// Holds no lock during the reads: it delays no other request.
    pub(crate) fn scrub(&self, volume: Option<&str>, uid: Option<u64>, from: u64) -> Answer {
        let Some(name) = volume else {
            return Ok(status::scrub(self.pool.scrub(), None));
        };
        let volume = self.volumes.get(name)?;
        // The client has the number from an earlier list.
        if uid.is_some_and(|uid| volume.volume.uid() != uid) {
            let reason = format!("another volume has the name {name} now");
            return Err(RequestError::new(reason).because(Cause::NoSuchVolume));
        }
        let (report, next) = volume.volume.scrub(from).map_err(refused)?;
        Ok(status::scrub(report, next))
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
        assert!(found.lease("c").err().unwrap().error.reason.contains("renamed to d"));
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
