//! An open pool as the exports of NBD servers; figures of the exports and of their clients.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use everbyte::volume::{FS, SWAP, VolumeKind};
use everbyte::{Volume, show_size};
use everbyte_control::{
    Answer, Cause, ExportStatus, PoolStats, PoolStatus, RequestError, Response, ServingStatus,
    VolumeStatus,
};
use everbyte_device::{MeteredDevice, ReadOnlyDevice};
use everbyte_media::{Mapped, Medium};
use everbyte_nbd::{Durability, Export, ExportInfo, Exports, OpenError};

use crate::fs_mounts::FsMounts;
use crate::metrics::Face;
use crate::open_pool::OpenPool;
use crate::request_error::Unavailable;
use crate::status;
use crate::volumes::OpenVolume;

/// Longest time to wait until the connection of a disconnected client has ended.
const DISCONNECT_TIME_MAX: Duration = Duration::from_secs(5);
/// Time between two looks at volumes by their waiters.
const LOOK: Duration = Duration::from_millis(20);

impl OpenPool {
    /// Names of the exported volumes.
    #[must_use]
    pub fn exported(&self) -> Vec<String> {
        // A volume of an unknown kind is tried as well, to log its error.
        let volumes = self.pool.engine().volumes().into_iter().filter(|volume| volume.kind() != FS);
        let names = volumes.map(|volume| volume.name().to_owned());
        names.filter(|name| self.options.only.as_ref().is_none_or(|only| only == name)).collect()
    }

    /// Opens every volume exported now, to detect errors at the start, and returns the names of the
    /// ready volumes. Waits for all backing devices concurrently, until `deadline` or until
    /// `is_enough` returns true. From then on a volume not yet ready is not an error.
    ///
    /// # Errors
    /// If only one volume is to be exported: the reason why it is not ready, unless it is lent.
    /// Fails too if a volume to be exported read-only is not exported.
    pub fn open_exported(
        &self,
        deadline: Instant,
        is_enough: impl Fn() -> bool,
    ) -> Result<Vec<String>, RequestError> {
        let exported = self.exported();
        let mut read_only = self.options.read_only_exports.iter();
        if let Some(name) = read_only.find(|name| !exported.contains(name)) {
            let reason = format!("there is no export {name:?} that could be read-only");
            return Err(RequestError::new(reason).because(Cause::NoSuchVolume));
        }
        let mut waiting = Vec::new();
        for name in exported {
            match self.volumes.get(&name) {
                Ok(volume) => {
                    // All openings run concurrently: a slow backing device does not delay the others.
                    if let Volume::Cache(cache) = &volume.volume {
                        cache.begin_to_open();
                    }
                    waiting.push(volume);
                }
                Err(error) => tracing::error!(volume = name, %error, "the volume cannot be served"),
            }
        }
        // Polled: `is_enough` wakes no waiter.
        while waiting.iter().any(|volume| !volume.is_settled())
            && Instant::now() < deadline
            && !is_enough()
        {
            std::thread::sleep(LOOK);
        }
        let ready = waiting.iter().filter(|volume| volume.is_ready());
        let ready: Vec<String> = ready.map(|volume| volume.name().to_owned()).collect();
        let missing = self.options.only.as_ref().filter(|only| !ready.contains(only));
        let Some(only) = missing.filter(|_| !is_enough()) else { return Ok(ready) };
        let volume = self.volumes.get(only)?;
        if volume.is_lent() {
            // The programs with the lease need a server, and clients can have the volume after them.
            return Ok(ready);
        }
        let not_ready = || format!("volume {only} is not ready").into();
        Err(volume.device().err().map_or_else(not_ready, |why| why.error))
    }

    /// Status of a volume. An unopenable volume has a status all the same.
    pub(crate) fn volume_status(&self, volume: &everbyte_pool::Volume<Mapped>) -> VolumeStatus {
        let name = volume.name();
        // A volume of another kind is not opened for a list.
        let opened = match [VolumeKind::CACHE, SWAP].contains(&volume.kind()) {
            true => self.volumes.get(name).map(Some),
            false => Ok(self.volumes.opened(name)),
        };
        let damage = match opened {
            Ok(Some(opened)) => return self.status_of(&opened),
            Ok(None) => None,
            Err(why) => (why.cause == Some(Cause::VolumeDamaged)).then_some(why.reason),
        };
        let mut found = self.pool.status_of(volume);
        found.damage = found.damage.or(damage);
        status::volume(volume, found, self.is_served().then_some(0))
    }

    /// Status of an open volume.
    pub(crate) fn status_of(&self, opened: &OpenVolume) -> VolumeStatus {
        let clients = self.is_served().then(|| opened.quiesce.clients());
        let mut status =
            status::volume(opened.volume.engine_volume(), opened.volume.status(), clients);
        status.mounted_on = opened.mounts.as_ref().and_then(FsMounts::mounted_on);
        // A damaged or read-only volume keeps this state: it says more than a mount.
        if status.mounted_on.is_some() && status.state == "ok" {
            "mounted".clone_into(&mut status.state);
        }
        status
    }

    /// Status of each volume, after a look for damage in its map.
    pub(crate) fn volume_statuses(&self) -> Vec<VolumeStatus> {
        let status = |volume: &Arc<everbyte_pool::Volume<Mapped>>| {
            let mut status = self.volume_status(volume);
            // The search reads the map, so known damage saves it.
            if status.damage.is_none() {
                status.damage = self.pool.engine().find_damage(volume);
                if status.damage.is_some() {
                    "damaged".clone_into(&mut status.state);
                }
            }
            status
        };
        self.pool.engine().volumes().iter().map(status).collect()
    }

    pub(crate) fn pool_status(&self) -> PoolStatus {
        let info = self.pool.info();
        let volumes = self.volume_statuses();
        // The engine knows damage outside of all volumes as well.
        let known = volumes.iter().map(status::health_of).max().unwrap_or_default();
        PoolStatus {
            path: self.pool.path().display().to_string(),
            uid: info.uid,
            size_bytes: info.size_bytes,
            used_bytes: info.data_bytes.saturating_sub(info.free_bytes),
            free_bytes: info.free_bytes,
            low_on_space: info.low_on_space,
            provisioned_bytes: info.provisioned_bytes,
            survives: self.pool.medium().persistence_domain.to_string(),
            medium: status::medium(self.pool.medium()),
            clean: info.recovery.was_clean,
            health: status::health(known.max(self.pool.engine().known_health())),
            records_undone: info.recovery.records_undone,
            remarks: info.recovery.remarks,
            read_only: info.read_only,
            volumes_max: info.volumes_max,
            volumes,
            serving: self.serving(),
        }
    }

    /// The server's process, addresses and exports; `None` if the pool is not served.
    #[must_use]
    pub fn serving(&self) -> Option<ServingStatus> {
        let servers = self.servers()?;
        let exports = self.exported().into_iter().map(|name| {
            let uris = servers.iter().map(|server| server.address().uri(&name)).collect();
            ExportStatus { name, uris }
        });
        Some(ServingStatus {
            pid: std::process::id(),
            read_only: self.pool.is_read_only(),
            addresses: servers.iter().map(|server| server.address().to_string()).collect(),
            exports: exports.collect(),
            writers: Some(status::writers(&self.pool.writers())),
        })
    }

    pub(crate) fn stats(&self) -> PoolStats {
        let engine = self.pool.engine();
        PoolStats {
            medium: status::counters(engine.medium().counters()),
            volumes: engine.volumes().iter().map(|volume| status::checkpoints(volume)).collect(),
            servers: self.servers().iter().flatten().map(|server| status::server(server)).collect(),
            wear: engine.medium().wear().map(status::wear),
        }
    }

    /// Figures of the served pool.
    ///
    /// # Errors
    /// The pool is not served.
    pub(crate) fn served_metrics(&self) -> Answer {
        match self.is_served() {
            true => Ok(Response::Metrics(Box::new(self.metrics()))),
            false => Err(RequestError::new("the pool is not served, so it has no metrics")),
        }
    }

    /// Lists the connections of clients.
    ///
    /// # Errors
    /// The pool is not served.
    pub(crate) fn clients(&self) -> Answer {
        let servers = self.servers().ok_or_else(not_served)?;
        let clients = servers.iter().flat_map(|server| {
            let address = server.address().to_string();
            let connections = server.connections().into_iter();
            connections.map(move |connection| status::client(address.clone(), connection))
        });
        let vhosts = self.vhosts();
        let guests = vhosts.iter().filter_map(|server| {
            Some(status::client(server.address().to_owned(), server.connection()?))
        });
        Ok(Response::Clients(clients.chain(guests).collect()))
    }

    pub(crate) fn disconnect(&self, id: u64) -> Answer {
        let servers = self.servers().ok_or_else(not_served)?;
        // A number belongs to one connection of one server in this process.
        let guest = self.vhosts().iter().find_map(|s| s.disconnect(Some(id), DISCONNECT_TIME_MAX));
        if let Some(has_ended) = guest {
            return Ok(Response::Disconnected { id, stuck: !has_ended });
        }
        let found = servers.iter().find(|s| s.connections().iter().any(|c| c.id == id));
        let server = found.ok_or_else(|| {
            RequestError::new(format!("there is no client {id}")).because(Cause::NoSuchClient)
        })?;
        let disconnected = server.disconnect(id, DISCONNECT_TIME_MAX);
        Ok(Response::Disconnected { id, stuck: !disconnected.stuck.is_empty() })
    }
}

fn not_served() -> RequestError {
    RequestError::new("nobody serves the pool, so it has no clients")
}

impl Exports for OpenPool {
    fn list(&self) -> Vec<ExportInfo> {
        let describe = |name: String| {
            let volume = self.pool.engine().volume(&name);
            let description = volume.map(|volume| {
                let status = self.volume_status(&volume);
                format!("Everbyte {} volume, {}", status.kind, show_size(status.size_bytes))
            });
            ExportInfo { description: description.unwrap_or_default(), name }
        };
        self.exported().into_iter().map(describe).collect()
    }

    fn open(&self, name: &str) -> Result<Export, OpenError> {
        self.export(name, Face::Nbd)
    }
}

impl OpenPool {
    /// Returns the export `name` for a client of `face`. The default export is the only one there is.
    ///
    /// # Errors
    /// The volume cannot be used, or the pool is being closed.
    pub fn export(&self, name: &str, face: Face) -> Result<Export, OpenError> {
        if self.is_closing.load(Ordering::Acquire) {
            return Err(OpenError::ShuttingDown);
        }
        let exported = self.exported();
        let found = match (name, exported.as_slice()) {
            ("", [single]) => Some(single),
            _ => exported.iter().find(|known| *known == name),
        };
        let name = found.ok_or(OpenError::Unknown)?;
        let unreadable = |error| Unavailable::new("damaged", error);
        let volume = self.volumes.get(name).map_err(unreadable);
        let leased = volume.and_then(|volume| Ok((volume.lease(name)?, volume)));
        let (mut device, volume) = leased.map_err(|why| {
            tracing::warn!(volume = name, "a client cannot have the volume: {why}");
            OpenError::Unavailable { reason: why.public }
        })?;
        if self.options.read_only_exports.contains(name) {
            device = Arc::new(ReadOnlyDevice::new(device, "the volume is exported read-only"));
        }
        let device = match &*self.recorder.lock() {
            Some(recorder) => recorder.record(name, device),
            None => device,
        };
        // Outside of all others: refused writes count as well.
        let device = Arc::new(MeteredDevice::new(device, volume.meters.of(face)));
        // A volatile volume must not announce durability.
        let durability =
            if volume.is_durable() { self.options.durability } else { Durability::Never };
        Ok(Export::new(name, device).with_durability(durability))
    }
}
