//! The volumes of an open pool, as exports of NBD servers and as what control requests act on.
//!
//! Invariants: a volume is open at most once, because its block locks live in that one
//! [`BlockVolume`]; whatever changes the set of volumes, or the pool as a whole, holds `admin`;
//! after [`Registry::close`] nothing is changed any more; a pool that is served unchanged refuses
//! every request that would change it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};

use everbyte_block::{BlockOptions, BlockVolume};
use everbyte_cache::Change;
use everbyte_control::{
    ExportStatus, Handler, NewVolume, PoolStats, PoolStatus, Refused, Request, Response,
    ServingStatus, VolumeStatus,
};
use everbyte_device::BlockDevice;
use everbyte_device::record::Recorder;
use everbyte_media::{Description, Mapped, Medium};
use everbyte_nbd::{Export, ExportInfo, Exports, OpenError, Server};
use everbyte_pool::format::VolumeKind;
use everbyte_pool::{Pool, PoolError};
use parking_lot::{Mutex, MutexGuard, RwLock};

use crate::backing;
use crate::caches::{self, Caches};
use crate::size::show_size;
use crate::status::{self, CHECKSUM_WORDS, DELTA_WORDS, MAP_WORDS, meaning};

type Device = BlockVolume<Mapped>;

/// The volumes of an open pool, each open at most once.
pub(crate) struct Registry {
    pool: Arc<Pool<Mapped>>,
    path: PathBuf,
    medium: Description,
    /// The one volume that is exported, if not all are.
    only: Option<String>,
    /// Whether the pool is a private copy whose changes nobody would ever see again.
    unchanging: bool,
    volumes: RwLock<BTreeMap<String, Arc<Device>>>,
    caches: Caches,
    /// Whether the pool is closed.
    admin: Mutex<bool>,
    servers: RwLock<Vec<Weak<Server>>>,
    /// Who writes down what clients ask for.
    recorder: Mutex<Option<Recorder>>,
}

fn refused(error: &PoolError) -> Refused {
    Refused(error.to_string())
}

impl Registry {
    /// For the pool at `path`, which lies on `medium`. With `only`, one volume is exported; with
    /// `unchanging`, the open pool is a private copy.
    pub(crate) fn new(
        pool: Pool<Mapped>,
        path: &Path,
        medium: Description,
        only: Option<String>,
        unchanging: bool,
    ) -> Self {
        Self {
            pool: Arc::new(pool),
            path: path.to_owned(),
            medium,
            only,
            unchanging,
            volumes: RwLock::default(),
            caches: Caches::default(),
            admin: Mutex::new(false),
            servers: RwLock::default(),
            recorder: Mutex::default(),
        }
    }

    pub(crate) fn pool(&self) -> &Arc<Pool<Mapped>> {
        &self.pool
    }

    /// Tells the registry who serves it.
    pub(crate) fn set_servers(&self, servers: &[Arc<Server>]) {
        *self.servers.write() = servers.iter().map(Arc::downgrade).collect();
    }

    /// Writes down what clients that come from now on ask for.
    pub(crate) fn set_recorder(&self, recorder: Recorder) {
        *self.recorder.lock() = Some(recorder);
    }

    /// How storage behind caches is used from now on.
    pub(crate) fn set_backing(&self, options: backing::Options) {
        self.caches.set_options(options);
    }

    /// Ends the recording, if there is one, and says how many requests are in it.
    pub(crate) fn end_recording(&self) -> Option<u64> {
        self.recorder.lock().take().map(Recorder::finish)
    }

    /// Closes the pool cleanly, unless it is a private copy. Nothing is changed afterwards.
    ///
    /// # Errors
    /// The medium's.
    pub(crate) fn close(&self) -> Result<(), PoolError> {
        let mut closed = self.admin.lock();
        if std::mem::replace(&mut *closed, true) || self.unchanging {
            return Ok(());
        }
        self.caches.close();
        self.pool.close()
    }

    /// Names of the volumes that are exported.
    pub(crate) fn exported(&self) -> Vec<String> {
        let names = self.pool.volumes().into_iter().map(|volume| volume.name().to_owned());
        names.filter(|name| self.only.as_ref().is_none_or(|only| only == name)).collect()
    }

    /// The volume of this name, opened if need be.
    ///
    /// # Errors
    /// There is none, or it cannot be read.
    pub(crate) fn device(&self, name: &str) -> Result<Arc<Device>, PoolError> {
        if let Some(device) = self.volumes.read().get(name) {
            return Ok(Arc::clone(device));
        }
        let closed = self.admin.lock();
        self.device_locked(name, &closed)
    }

    fn device_locked(
        &self,
        name: &str,
        _admin: &MutexGuard<'_, bool>,
    ) -> Result<Arc<Device>, PoolError> {
        if let Some(device) = self.volumes.read().get(name) {
            return Ok(Arc::clone(device));
        }
        let kind = self.pool.volume(name)?.kind();
        let device = Arc::new(Device::open_as(&self.pool, name, kind)?);
        device.set_read_only(self.unchanging);
        self.volumes.write().insert(name.to_owned(), Arc::clone(&device));
        Ok(device)
    }

    /// What clients of the volume use, opened if need be.
    ///
    /// # Errors
    /// There is no such volume, or it cannot be served.
    pub(crate) fn export(&self, name: &str) -> Result<Arc<dyn BlockDevice>, Refused> {
        let device = self.device(name).map_err(|error| refused(&error))?;
        if device.volume().kind() != VolumeKind::CACHE {
            return Ok(device);
        }
        if self.unchanging {
            return Err(Refused(format!(
                "volume {name} is a cache, which cannot be served read-only: its pages could not \
                 be written back"
            )));
        }
        Ok(self.caches.open(name, &device)?)
    }

    /// Clients that have the volume open: everybody but the registry who shares it.
    fn clients(&self, name: &str) -> u64 {
        if self.pool.volume(name).is_ok_and(|volume| volume.kind() == VolumeKind::CACHE) {
            return self.caches.clients(name);
        }
        let volumes = self.volumes.read();
        volumes.get(name).map_or(0, |device| Arc::strong_count(device) as u64 - 1)
    }

    /// Locks against other changes, or says why nothing may be changed.
    fn change(&self) -> Result<MutexGuard<'_, bool>, Refused> {
        if self.unchanging {
            return Err(Refused(
                "the pool is served read-only: end the server and serve it without --read-only, \
                 or try again when nobody serves it"
                    .into(),
            ));
        }
        let closed = self.admin.lock();
        if *closed {
            return Err(Refused("the server is shutting down: try again when it has".into()));
        }
        Ok(closed)
    }

    fn grow(&self, size_bytes: u64) -> Result<Response, Refused> {
        let _admin = self.change()?;
        let old = self.pool.info().size_bytes;
        if size_bytes <= old {
            return Err(Refused(format!(
                "the pool has {} ({old} bytes) already: a pool can only grow",
                show_size(old)
            )));
        }
        let medium = self.pool.medium();
        if size_bytes > medium.len() {
            medium.grow(size_bytes).map_err(|error| Refused(error.to_string()))?;
        }
        let size_bytes = self.pool.extend().map_err(|error| refused(&error))?;
        Ok(Response::Grown { size_bytes })
    }

    fn create(&self, new: &NewVolume) -> Result<Response, Refused> {
        let admin = self.change()?;
        let unknown = |what: &str, word: &str| Refused(format!("{word:?} is no {what}"));
        let options = BlockOptions {
            map: meaning(&MAP_WORDS, &new.map).ok_or_else(|| unknown("map", &new.map))?,
            delta: meaning(&DELTA_WORDS, &new.delta)
                .ok_or_else(|| unknown("translation setting", &new.delta))?,
            checksum: meaning(&CHECKSUM_WORDS, &new.checksum)
                .ok_or_else(|| unknown("checksum", &new.checksum))?,
            threshold_percent: new.threshold_percent,
            log_bytes: new.log_bytes,
            lanes: new.lanes,
        };
        let device = match (new.kind.as_str(), &new.cache) {
            ("block", None) => Device::create(&self.pool, &new.name, new.size_bytes, &options)
                .map_err(|error| refused(&error))?,
            ("cache", Some(cache)) => {
                let backing = self.caches.options();
                caches::create(&self.pool, &new.name, cache, &options, &backing)?
            }
            (kind, _) => {
                let what = format!("there are no {kind:?} volumes: the kinds are block and cache");
                return Err(Refused(what));
            }
        };
        let volume = Arc::clone(device.volume());
        self.volumes.write().insert(new.name.clone(), Arc::new(device));
        drop(admin);
        Ok(Response::Volume(self.volume_status(&volume)))
    }

    fn resize(&self, name: &str, size_bytes: u64) -> Result<Response, Refused> {
        let admin = self.change()?;
        let device = self.device_locked(name, &admin).map_err(|error| refused(&error))?;
        if device.volume().kind() == VolumeKind::CACHE {
            return Err(Refused(format!(
                "volume {name} is a cache, which is as large as its storage: make that larger and \
                 pass --follow-backing instead of --size; --scm and --dram change its memory"
            )));
        }
        device.resize(size_bytes).map_err(|error| refused(&error))?;
        let volume = Arc::clone(device.volume());
        drop((admin, device));
        Ok(Response::Volume(self.volume_status(&volume)))
    }

    fn delete(&self, name: &str, force: bool) -> Result<Response, Refused> {
        let admin = self.change()?;
        let clients = self.clients(name);
        if clients > 0 && !force {
            return Err(Refused(format!(
                "{clients} clients have volume {name} open: disconnect them, or pass --force to \
                 delete it under them"
            )));
        }
        let device = self.device_locked(name, &admin).map_err(|error| refused(&error))?;
        if !force {
            self.check_nothing_dirty(name, &device)?;
        }
        self.delete_locked(name, &device, &admin)
    }

    /// Refuses to delete a cache that has what its storage does not.
    fn check_nothing_dirty(&self, name: &str, device: &Device) -> Result<(), Refused> {
        let is_cache = device.volume().kind() == VolumeKind::CACHE;
        let status = is_cache.then(|| self.caches.status(name, device)).flatten();
        match status {
            Some(status) if status.dirty_bytes > 0 => Err(Refused(format!(
                "volume {name} is a cache with {} that its storage does not have: 'everbyte volume \
                 detach' writes them there and then deletes it, --force throws them away",
                show_size(status.dirty_bytes)
            ))),
            _ => Ok(()),
        }
    }

    /// The volume of a cache.
    fn cache_locked(
        &self,
        name: &str,
        admin: &MutexGuard<'_, bool>,
    ) -> Result<Arc<Device>, Refused> {
        let device = self.device_locked(name, admin).map_err(|error| refused(&error))?;
        if device.volume().kind() == VolumeKind::CACHE {
            return Ok(device);
        }
        Err(Refused(format!("volume {name} is no cache, so it has no storage behind it")))
    }

    /// Writes back what a cache has and deletes it.
    fn detach(&self, name: &str) -> Result<Response, Refused> {
        let admin = self.change()?;
        let device = self.cache_locked(name, &admin)?;
        let held = self.caches.hold(name)?;
        self.caches.drain(&held, &device)?;
        self.delete_locked(name, &device, &admin)
    }

    /// Writes some of what a cache has back. Locks out other changes for this long only.
    fn drain_cache(&self, name: &str) -> Result<Response, Refused> {
        let admin = self.change()?;
        let device = self.cache_locked(name, &admin)?;
        let held = self.caches.hold(name)?;
        let dirty_bytes = self.caches.drain_part(&held, &device)?;
        Ok(Response::Drained { dirty_bytes })
    }

    fn resize_cache(&self, name: &str, change: &Change) -> Result<Response, Refused> {
        let admin = self.change()?;
        let device = self.cache_locked(name, &admin)?;
        let held = self.caches.hold(name)?;
        self.caches.resize(&held, &device, change, self.pool.info().free_bytes)?;
        drop((held, admin));
        Ok(Response::Volume(self.volume_status(device.volume())))
    }

    fn attach(&self, name: &str, backing: &str) -> Result<Response, Refused> {
        let admin = self.change()?;
        let device = self.cache_locked(name, &admin)?;
        let held = self.caches.hold(name)?;
        self.caches.attach(&held, &device, backing)?;
        drop((held, admin));
        Ok(Response::Volume(self.volume_status(device.volume())))
    }

    fn delete_locked(
        &self,
        name: &str,
        device: &Arc<Device>,
        _admin: &MutexGuard<'_, bool>,
    ) -> Result<Response, Refused> {
        self.caches.forget(name);
        let deleted = self.pool.delete_volume(name);
        if device.volume().is_gone() {
            self.volumes.write().remove(name);
        }
        deleted.map_err(|error| refused(&error))?;
        Ok(Response::Deleted { name: name.to_owned() })
    }

    fn check(&self) -> Result<Response, Refused> {
        let closed = self.admin.lock();
        if *closed {
            return Err(Refused("the server is shutting down".into()));
        }
        let report = self.pool.check().map_err(|error| refused(&error))?;
        Ok(Response::Check(status::check(report)))
    }

    /// Holds no lock of the registry's while it reads, so that it delays nobody.
    fn scrub(&self, volume: Option<&str>, from: u64) -> Result<Response, Refused> {
        let Some(name) = volume else {
            return Ok(Response::Scrub(status::scrub(self.pool.scrub(), None)));
        };
        let device = self.device(name).map_err(|error| refused(&error))?;
        let (report, next) = device.scrub(from).map_err(|error| Refused(error.to_string()))?;
        Ok(Response::Scrub(status::scrub(report, next)))
    }

    fn volume_status(&self, volume: &everbyte_pool::Volume<Mapped>) -> VolumeStatus {
        let clients = self.serving().map(|_| self.clients(volume.name()));
        let mut status = status::volume(&self.pool, volume, clients);
        if volume.kind() == VolumeKind::CACHE
            && let Ok(device) = self.device(volume.name())
        {
            status.cache = self.caches.status(volume.name(), &device).map(Box::new);
            // What its users see, and not what lies in the pool.
            if let Some(cache) = &status.cache {
                status.size_bytes = cache.backing_bytes;
            }
        }
        status
    }

    fn volume_statuses(&self) -> Vec<VolumeStatus> {
        self.pool.volumes().iter().map(|volume| self.volume_status(volume)).collect()
    }

    fn pool_status(&self) -> PoolStatus {
        let info = self.pool.info();
        PoolStatus {
            path: self.path.display().to_string(),
            uid: info.uid,
            size_bytes: info.size_bytes,
            used_bytes: info.data_bytes.saturating_sub(info.free_bytes),
            free_bytes: info.free_bytes,
            low_on_space: info.low_on_space,
            promised_bytes: info.promised_bytes,
            survives: self.medium.survives.to_string(),
            medium: status::medium(&self.medium),
            clean: info.recovery.was_clean,
            records_undone: info.recovery.records_undone,
            remarks: info.recovery.remarks,
            read_only: info.read_only,
            volumes_max: info.volumes_max,
            volumes: self.volume_statuses(),
            serving: self.serving(),
        }
    }

    fn servers(&self) -> Vec<Arc<Server>> {
        self.servers.read().iter().filter_map(Weak::upgrade).collect()
    }

    /// Who serves and where; `None` if nobody does.
    pub(crate) fn serving(&self) -> Option<ServingStatus> {
        let servers = self.servers();
        let exports = self.exported().into_iter().map(|name| {
            let uris = servers.iter().map(|server| server.address().uri(&name)).collect();
            ExportStatus { name, uris }
        });
        (!servers.is_empty()).then(|| ServingStatus {
            pid: std::process::id(),
            read_only: self.unchanging,
            addresses: servers.iter().map(|server| server.address().to_string()).collect(),
            exports: exports.collect(),
        })
    }

    fn stats(&self) -> PoolStats {
        let servers = self.servers();
        PoolStats {
            medium: status::counters(&self.pool.medium().counters()),
            volumes: self.pool.volumes().iter().map(|v| status::checkpoints(v)).collect(),
            servers: servers
                .iter()
                .map(|server| status::server(server.address().to_string(), &server.stats()))
                .collect(),
        }
    }
}

impl Handler for Registry {
    fn handle(&self, request: Request) -> Result<Response, Refused> {
        tracing::debug!(?request, "control request");
        match request {
            Request::Info => Ok(Response::Pool(Box::new(self.pool_status()))),
            Request::Check => self.check(),
            Request::Scrub { volume, from } => self.scrub(volume.as_deref(), from),
            Request::Grow { size_bytes } => self.grow(size_bytes),
            Request::VolumeCreate(new) => self.create(&new),
            Request::VolumeList => Ok(Response::Volumes(self.volume_statuses())),
            Request::VolumeResize { name, size_bytes } => self.resize(&name, size_bytes),
            Request::VolumeDelete { name, force } => self.delete(&name, force),
            Request::VolumeDetach { name } => self.detach(&name),
            Request::CacheDrain { name } => self.drain_cache(&name),
            Request::CacheResize { name, dram_bytes, scm_bytes, follow_backing } => {
                let change = Change { dram_bytes, scm_bytes, follows_storage: follow_backing };
                self.resize_cache(&name, &change)
            }
            Request::CacheAttach { name, backing } => self.attach(&name, &backing),
            Request::Stats => Ok(Response::Stats(self.stats())),
            Request::Exports => Ok(Response::Serving(self.serving().unwrap_or_default())),
            other => Err(Refused(format!("this server does not know {other:?}"))),
        }
    }
}

impl Exports for Registry {
    fn list(&self) -> Vec<ExportInfo> {
        let describe = |name: String| {
            let status = self.pool.volume(&name).map(|volume| self.volume_status(&volume));
            let description = status.map(|status| {
                format!("Everbyte {} volume, {}", status.kind, show_size(status.size_bytes))
            });
            ExportInfo { description: description.unwrap_or_default(), name }
        };
        self.exported().into_iter().map(describe).collect()
    }

    /// The default export is the only one there is.
    fn open(&self, name: &str) -> Result<Export, OpenError> {
        let exported = self.exported();
        let found = match (name, exported.as_slice()) {
            ("", [single]) => Some(single),
            _ => exported.iter().find(|known| *known == name),
        };
        let name = found.ok_or(OpenError::Unknown)?;
        let device = self.export(name).map_err(|error| {
            tracing::error!(volume = name, %error, "the volume cannot be opened");
            OpenError::Unavailable { reason: error.to_string() }
        })?;
        let device = match &*self.recorder.lock() {
            Some(recorder) => recorder.record(name, device),
            None => device,
        };
        Ok(Export::new(name, device))
    }
}
