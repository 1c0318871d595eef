//! A mount: its options, its threads, its end.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use everbyte_device::meter::Meter;
use everbyte_fs::{FileSystem, InodeNo};
use everbyte_media::Medium;
use fuser::{Config, Notifier, Session, SessionACL};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::device::{DirMount, can_open_devices, check_device};
use crate::directory::{MountError, MountOptions};
use crate::foreign::ForeignMount;
use crate::invalidation::{CacheInvalidation, KernelCaches};
use crate::lookup_count::KnownFiles;
use crate::metered::MeteredOperations;
use crate::operations::Operations;
use crate::presence::{Presence, Superblock};
use crate::writeback_errors::{Loss, LostStores};

/// A mounted file system. Dropping it removes the mount from its directory if it was made here.
#[derive(Debug)]
pub struct Mount {
    /// The session did not mount, so it does not unmount by a path that may hold another mount
    /// later.
    session: JoinHandle<()>,
    notifier: Notifier,
    device: OwnedFd,
    place: Place,
    root: InodeNo,
    known: Arc<KnownFiles>,
    lost: LostStores,
}

/// The place of a mount.
#[derive(Debug)]
enum Place {
    /// A directory where this process has mounted.
    Here(DirMount),
    /// A directory of another mounting process, perhaps in another namespace.
    Elsewhere(ForeignMount),
}

/// Longest time to wait until the kernel has something to say about a mount.
const FIRST_REQUEST_TIME_MAX: Timespec = Timespec { tv_sec: 5, tv_nsec: 0 };
/// Longest wait until the mounting process removes the mount, and for its end after its removal
/// here. The mount lives on while programs have files open, or another namespace has it.
const END_TIME_MAX: Duration = Duration::from_secs(2);
/// Time between two checks of an ending mount.
const LOOK: Duration = Duration::from_millis(10);

/// The end of a mount.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum UnmountOutcome {
    /// The kernel has released the whole mount.
    Ended,
    /// Programs have files open. Their earlier stores through mappings have arrived. Later stores
    /// may be lost.
    Used,
}

impl Mount {
    /// Mounts `fs` on the directory `dir`, and serves it on new threads until it is unmounted. `meter` counts
    /// the kernel's requests.
    ///
    /// # Errors
    /// `Mount`: the directory or FUSE is missing, or the mount is not permitted. `Serve`: the
    /// threads could not start.
    pub fn new<M: Medium>(
        fs: Arc<FileSystem<M>>,
        dir: &Path,
        options: &MountOptions,
        meter: &Meter,
    ) -> Result<Self, MountError> {
        let (mounted, descriptor) = DirMount::new(dir, options)?;
        let presence = Arc::clone(mounted.presence());
        match Self::serve(fs, descriptor, options, Some(presence), meter) {
            Ok(mut mount) => {
                mount.place = Place::Here(mounted);
                Ok(mount)
            }
            Err(error) => {
                // A mount without a server would make all programs wait that use the directory.
                if !mounted.detach() {
                    tracing::warn!(dir = %dir.display(), "a mount without a server is left behind");
                }
                Err(error)
            }
        }
    }

    /// Serves `fs` on new threads to a mount made elsewhere, by [`crate::DirMount`] or in its way,
    /// until it is unmounted. The kernel enforces the mounting process's choice of users. `meter` counts the
    /// kernel's requests.
    ///
    /// # Errors
    /// `Serve`: the descriptor is not of `/dev/fuse`, or is not mounted.
    pub fn over<M: Medium>(
        fs: Arc<FileSystem<M>>,
        descriptor: OwnedFd,
        options: &MountOptions,
        meter: &Meter,
    ) -> Result<Self, MountError> {
        Self::serve(fs, descriptor, options, None, meter)
    }

    fn serve<M: Medium>(
        fs: Arc<FileSystem<M>>,
        descriptor: OwnedFd,
        options: &MountOptions,
        presence: Option<Arc<Presence>>,
        meter: &Meter,
    ) -> Result<Self, MountError> {
        let failed = |error| MountError::Serve { error };
        check_device(&descriptor).map_err(failed)?;
        // A descriptor that was never mounted has no requests, and the session would wait without
        // end.
        wait_for_kernel(&descriptor).map_err(failed)?;
        let mut config = Config::default();
        config.n_threads = Some(options.threads.max(1));
        // One for each thread but the first, or one for all: a thread without its descriptor would
        // end the session.
        config.clone_fd = can_open_devices(options.threads.saturating_sub(1));
        let device = descriptor.try_clone().map_err(failed)?;
        let place = Place::Elsewhere(ForeignMount::of(&device, options.source.clone()));
        let root = fs.root();
        let (known, caches) = (Arc::<KnownFiles>::default(), CacheInvalidation::default());
        let lost = LostStores::default();
        let operations =
            Operations::new(fs, options, Arc::clone(&known), caches.clone(), lost.clone());
        let operations = MeteredOperations::new(operations, meter, options.threads);
        let session = Session::from_fd(operations, descriptor, SessionACL::All, config);
        let session = session.map_err(failed)?;
        let notifier = session.notifier();
        caches.start(&KernelCaches { notifier: notifier.clone(), root }).map_err(failed)?;
        let end = ConnectionEnd {
            device: device.try_clone().map_err(failed)?,
            superblock: Superblock::of_descriptor(&device),
            presence,
            lost: lost.clone(),
        };
        // The last answer can show an abort, so the thread that receives it notes the end.
        let run = move || end.note(session.run());
        let session = Builder::new().name("fuser-bg".to_owned()).spawn(run).map_err(failed)?;
        Ok(Self { session, notifier, device, place, root, known, lost })
    }

    /// The kernel's caches of the mount.
    #[must_use]
    pub fn caches(&self) -> KernelCaches {
        KernelCaches { notifier: self.notifier.clone(), root: self.root }
    }

    /// The lost stores of programs through mappings, until the mount has ended.
    #[must_use]
    pub fn lost_stores(&self) -> LostStores {
        self.lost.clone()
    }

    /// Returns true once the mount has ended, by [`Mount::unmount`] or from outside, or has failed.
    #[must_use]
    pub fn is_ended(&self) -> bool {
        self.session.is_finished()
    }

    /// Returns true if the mount has not ended and no directory of this process's namespace has it.
    #[must_use]
    pub fn is_unmounting(&self) -> bool {
        let is_listed = || Superblock::of_descriptor(&self.device).is_none_or(|it| it.is_mounted());
        // The next mount may have its number once the connection has ended.
        !self.is_ended() && (is_disconnected(&self.device) || !is_listed())
    }

    /// Returns true if the serving threads have ended before the mount, for example after a failed
    /// start of a thread.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        self.is_ended() && !is_disconnected(&self.device)
    }

    /// Ends the mount, and waits a few seconds for running requests and for programs with open
    /// files. After that time, a mount in use is removed from its directory. Earlier stores of its
    /// programs through mappings have arrived, except those in [`Mount::lost_stores`]. Their later
    /// requests are answered while this process lives, and fail after the pool is closed. A mount
    /// made elsewhere is removed from its directory if this process can do so. Otherwise it is dead
    /// after the end of this process. Any other mount on the directory stays.
    ///
    /// # Errors
    /// `Unmount`: the system refuses. It stays mounted then. `Serve`: its threads have ended before.
    pub fn unmount(self) -> Result<UnmountOutcome, MountError> {
        let has_failed = self.has_failed();
        if self.is_ended() && !has_failed {
            return Ok(UnmountOutcome::Ended);
        }
        let is_taken = match &self.place {
            Place::Here(mounted) => mounted
                .take_away()
                .map(|_| true)
                .map_err(|error| MountError::Unmount { dir: mounted.dir().to_owned(), error })?,
            Place::Elsewhere(mounted) => {
                // The mounting process removes its mount first, because this one may lack the
                // rights.
                !has_failed && self.ends_within(END_TIME_MAX) || mounted.take_away()
            }
        };
        if has_failed {
            let error = io::Error::other("the threads that served it have ended");
            return Err(MountError::Serve { error });
        }
        if is_taken && self.ends_within(END_TIME_MAX) {
            return Ok(UnmountOutcome::Ended);
        }
        // The mount lives on for its users, and this process may end at any time from here on.
        self.write_back();
        let place = &self.place;
        tracing::warn!(?place, "a mount in use is dead once this process has ended");
        Ok(UnmountOutcome::Used)
    }

    /// Makes the kernel write back stores of programs through mappings, and waits for the answers:
    /// before the kernel forgets pages of a file, it writes the dirty ones. A sync of a mount does
    /// not wait for the answers.
    fn write_back(&self) {
        let caches = self.caches();
        self.known.all().into_iter().for_each(|inode| caches.forget_inode(inode));
    }

    fn ends_within(&self, time: Duration) -> bool {
        let deadline = Instant::now() + time;
        while !self.is_ended() && Instant::now() < deadline {
            std::thread::sleep(LOOK);
        }
        self.is_ended()
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let is_dead = self.lost.first() == Some(Loss::Aborted);
        // After an orderly end another mount can be on the directory.
        let is_there = !self.is_ended() || self.has_failed() || is_dead;
        if let (Place::Here(mounted), true) = (&self.place, is_there) {
            let _is_taken = mounted.detach();
        }
    }
}

/// The end of a connection to the kernel, for the thread that receives it.
struct ConnectionEnd {
    device: OwnedFd,
    /// The file system, if the kernel identifies it.
    superblock: Option<Superblock>,
    /// The presence of the mount, if it was made here.
    presence: Option<Arc<Presence>>,
    lost: LostStores,
}

impl ConnectionEnd {
    /// Notes an abort of the connection. `served` is the last answer of the threads that read
    /// requests.
    fn note(&self, served: io::Result<()>) {
        if !is_disconnected(&self.device) {
            // The kernel continues, and nothing is lost yet.
            return;
        }
        let says_aborted =
            served.is_err_and(|error| error.raw_os_error() == Some(libc::ECONNABORTED));
        let is_aborted = says_aborted
            || match &self.presence {
                Some(presence) => presence.was_aborted(),
                None => self.superblock.as_ref().is_some_and(Superblock::outlives_connection),
            };
        if is_aborted {
            self.lost.note_abort();
        }
    }
}

/// Returns true if the kernel has ended the mount of this device descriptor.
fn is_disconnected(device: &OwnedFd) -> bool {
    let mut ready = [PollFd::new(device, PollFlags::empty())];
    let polled = poll(&mut ready, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
    polled.is_ok() && ready[0].revents().contains(PollFlags::ERR)
}

/// Waits for the first request of the kernel, which follows immediately after a mount.
fn wait_for_kernel(descriptor: &OwnedFd) -> io::Result<()> {
    let mut ready = [PollFd::new(descriptor, PollFlags::IN)];
    if poll(&mut ready, Some(&FIRST_REQUEST_TIME_MAX))? > 0 {
        return Ok(());
    }
    Err(io::Error::new(io::ErrorKind::TimedOut, "the kernel asks for nothing"))
}
