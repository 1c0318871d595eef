//! An open pool: the object of control requests and of the exports of NBD servers.
//!
//! Owns the pool, its open volumes, its servers, and the record of clients' requests. Invariants:
//! after [`OpenPool::close`] nothing is opened or changed. A pool served unchanged rejects every
//! request to change it.

use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Instant;

use everbyte::Pool;
use everbyte::cache::NewSizes;
use everbyte_control::{
    Answer, Attached, AttachedAnswer, Cause, ControlServer, Handler, Request, RequestError,
    Response,
};
use everbyte_device::record::{RecordSummary, Recorder};
use everbyte_nbd::{Durability, Server};
use everbyte_vhost::VhostServer;
use parking_lot::{Mutex, RwLock};
use rustix::process::geteuid;

use crate::close_status::CloseStatus;
use crate::volumes::Volumes;

/// Options for serving a pool.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The only exported volume; `None` to export all.
    pub only: Option<String>,
    /// The volumes without write access for NBD clients.
    pub read_only_exports: Vec<String>,
    /// Durability of answered writes, as announced to clients by exports.
    pub durability: Durability,
}

/// An open pool, with its volumes, their clients and servers. Close it with [`OpenPool::close`].
/// Nothing is opened or changed afterwards.
pub struct OpenPool {
    pub(crate) pool: Pool,
    pub(crate) opened: Instant,
    pub(crate) options: Options,
    pub(crate) volumes: Volumes,
    /// Held while a volume gets another size for its users.
    pub(crate) sizes: Mutex<()>,
    pub(crate) is_closing: AtomicBool,
    /// True once mounts are rejected. Locked for reading during the start of a mount: the end of
    /// the last mount and a new mount then have an order.
    pub(crate) refuses_mounts: RwLock<bool>,
    pub(crate) close_status: CloseStatus,
    pub(crate) control: Mutex<Option<ControlServer>>,
    /// Its servers and their addresses, if it is served: perhaps only on the control socket.
    servers: RwLock<Option<Vec<Weak<Server>>>>,
    /// Its servers of virtual machines.
    vhosts: RwLock<Vec<Weak<VhostServer>>>,
    pub(crate) recorder: Mutex<Option<Recorder>>,
}

impl OpenPool {
    /// For a pool without another handle in use.
    #[must_use]
    pub fn new(pool: Pool, options: Options) -> Self {
        Self {
            volumes: Volumes::new(pool.clone()),
            pool,
            opened: Instant::now(),
            options,
            sizes: Mutex::default(),
            is_closing: AtomicBool::new(false),
            refuses_mounts: RwLock::default(),
            close_status: CloseStatus::default(),
            control: Mutex::default(),
            servers: RwLock::default(),
            vhosts: RwLock::default(),
            recorder: Mutex::default(),
        }
    }

    /// The pool itself, for its figures.
    #[must_use]
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Names a user with write access to the pool's bytes, other than root and the user of this
    /// process. `None` without such a user.
    #[must_use]
    pub fn distrust(&self) -> Option<String> {
        // The effective user decides about access, also in a set-user-id program.
        self.pool.writers().reason(geteuid().as_raw()).map(str::to_owned)
    }

    /// Serves commands on the control socket next to the pool until [`OpenPool::close`] has ended.
    ///
    /// # Errors
    /// As [`ControlServer::start`].
    pub fn start_control(self: &Arc<Self>) -> std::io::Result<()> {
        let handler: Arc<dyn Handler> = Arc::<Self>::clone(self);
        // Of the open file: the path may lead to another one by now.
        let owner = self.pool.engine().medium().metadata()?.map(|file| file.uid());
        *self.control.lock() = Some(ControlServer::start(self.pool.path(), owner, handler)?);
        Ok(())
    }

    /// Sets the NBD servers and the servers of virtual machines. From then on the pool is served.
    pub fn set_servers(&self, servers: &[Arc<Server>], vhosts: &[Arc<VhostServer>]) {
        // Weak: a server keeps the pool, and the pool must not keep the server.
        *self.vhosts.write() = vhosts.iter().map(Arc::downgrade).collect();
        *self.servers.write() = Some(servers.iter().map(Arc::downgrade).collect());
    }

    /// Records the requests of clients connecting from now on.
    pub fn set_recorder(&self, recorder: Recorder) {
        *self.recorder.lock() = Some(recorder);
    }

    /// Ends the recording, if there is one, and says how many requests are in it and whether all are.
    pub fn end_recording(&self) -> Option<RecordSummary> {
        self.recorder.lock().take().map(Recorder::finish)
    }

    /// The running NBD servers of a served pool; `None` if a command has the pool.
    pub(crate) fn servers(&self) -> Option<Vec<Arc<Server>>> {
        Some(self.servers.read().as_ref()?.iter().filter_map(Weak::upgrade).collect())
    }

    /// The running servers of virtual machines.
    pub(crate) fn vhosts(&self) -> Vec<Arc<VhostServer>> {
        self.vhosts.read().iter().filter_map(Weak::upgrade).collect()
    }

    /// Returns true if a server has the pool, false if a command has it.
    pub(crate) fn is_served(&self) -> bool {
        self.servers.read().is_some()
    }

    /// Fails once the pool is closing: from then on nothing is opened or changed.
    pub(crate) fn check_open(&self) -> Result<(), RequestError> {
        if self.is_closing.load(Ordering::Acquire) {
            return Err(shutting_down());
        }
        Ok(())
    }

    /// Fails if the pool is a private copy, or is closing.
    pub(crate) fn check_changing(&self) -> Result<(), RequestError> {
        if self.pool.is_read_only() {
            let refused = RequestError::new("the pool is served read-only");
            return Err(refused.because(Cause::ServedReadOnly));
        }
        self.check_open()
    }
}

impl Handler for OpenPool {
    fn handle(&self, request: Request) -> Answer {
        self.handle_attached(request, Attached::default()).map(|(response, _)| response)
    }

    fn handle_attached(&self, request: Request, attached: Attached) -> AttachedAnswer {
        // Only answers about files have bytes. A copy makes too many of these requests for a log.
        if let Request::Files { volume, request } = &request {
            return self.files(volume, request, &attached.bytes);
        }
        tracing::debug!(?request, "control request");
        let response = match request {
            Request::Info => Response::Pool(Box::new(self.pool_status())),
            Request::Check => self.check()?,
            Request::Scrub { volume, uid, from } => self.scrub(volume.as_deref(), uid, from)?,
            Request::Grow { size_bytes } => self.grow(size_bytes)?,
            Request::VolumeCreate(new) => self.create(&new, attached.client)?,
            Request::VolumeList => Response::Volumes(self.volume_statuses()),
            Request::VolumeResize { name, size_bytes, force } => {
                self.resize(&name, size_bytes, force)?
            }
            Request::VolumeRename { name, new_name, force } => {
                self.rename(&name, &new_name, force)?
            }
            Request::VolumeDelete { name, force } => self.delete(&name, force)?,
            Request::VolumeDetach { name, force } => self.detach(&name, force)?,
            Request::CacheDrain { name, force } => self.write_back(&name, force)?,
            Request::CacheResize { name, dram_bytes, scm_bytes, follow_backing, force } => {
                let follows_backing = follow_backing;
                let sizes = NewSizes { dram_bytes, scm_bytes, follows_backing };
                self.resize_cache(&name, sizes, force)?
            }
            Request::CacheAttach { name, backing, force } => {
                self.attach(&name, &backing, force, attached.client)?
            }
            Request::Mount(mount) => self.serve_mount(&mount, attached)?,
            Request::MountWait { volume, id, is_taken: false } => {
                self.wait_for_mount(&volume, id)?
            }
            Request::MountWait { volume, id, is_taken: true } => {
                self.wait_for_close(&volume, id)?
            }
            Request::Lend { volume, bytes } => self.lend(&volume, bytes, attached)?,
            Request::ClientList => self.clients()?,
            Request::ClientDisconnect { id } => self.disconnect(id)?,
            Request::Stats => Response::Stats(self.stats()),
            Request::Metrics => self.served_metrics()?,
            Request::Exports => Response::Serving(self.serving().unwrap_or_default()),
            other => return Err(format!("this server does not know {other:?}").into()),
        };
        Ok((response, Vec::new()))
    }
}

/// The error of a server at its end.
pub(crate) fn shutting_down() -> RequestError {
    RequestError::new("the server is shutting down: try again when it has")
        .because(Cause::ShuttingDown)
}
