//! Mounts a file system of a pool with a server: this command mounts, the server serves.
//!
//! Invariants: the directory never keeps a mount without a server, unless this process is killed.
//! The command succeeds only after the server has reported everything done through the mount as
//! durable.

use std::os::fd::AsFd;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow};
use everbyte_control::{ControlClient, ControlError, MountServed, Request, Response};
use everbyte_server::{DirMount, Loss, MountOptions};

use super::server::Stop;
use super::{mount_background, unexpected};

/// Longest time to wait for the end of a mount after its removal from the directory: it lives on as
/// long as programs have files open.
const END_TIME_MAX: Duration = Duration::from_secs(5);
const LOOK: Duration = Duration::from_millis(20);

/// A mount for a server to serve.
pub(super) struct ServedMount<'a> {
    pub(super) volume: String,
    pub(super) dir: &'a Path,
    pub(super) options: MountOptions,
    pub(super) threads: u16,
    /// Reads with a change of the time of the last access, in the server's word.
    pub(super) atime: String,
    /// This process is in the background.
    pub(super) detached: bool,
}

/// A mount taken over by the server.
pub(super) struct BegunMount {
    mount: Arc<DirMount>,
    client: ControlClient,
    volume: String,
    id: u64,
}

/// Mounts, and prints the ready line. After an error nothing is mounted.
pub(super) fn begin(
    wanted: ServedMount<'_>,
    mut client: ControlClient,
) -> anyhow::Result<BegunMount> {
    // The mount comes first: the server receives an open descriptor and needs no right to mount.
    let (mount, descriptor) = DirMount::new(wanted.dir, &wanted.options)?;
    let mount = Arc::new(mount);
    let volume = wanted.volume.clone();
    let request = Request::Mount(MountServed {
        volume: volume.clone(),
        dir: mount.dir().display().to_string(),
        read_only: wanted.options.read_only,
        threads: wanted.threads,
        atime: wanted.atime,
        no_dir_atime: !wanted.options.dir_access_times,
    });
    let served = client.call_attached(request, &[], Some(descriptor.as_fd()));
    // From here on the mount ends with the server.
    drop(descriptor);
    let id = match served {
        Ok((Response::Mounted { id }, _)) => id,
        refused => {
            take_away(&mount);
            return Err(refused.map_or_else(Into::into, |(other, _)| unexpected(&other)));
        }
    };
    // A mount that nobody knows about would stay behind. It is removed instead.
    if let Err(error) = mount_background::say_ready(wanted.dir, wanted.detached) {
        take_away(&mount);
        return Err(error);
    }
    Ok(BegunMount { mount, client, volume, id })
}

impl BegunMount {
    /// Waits until the mount has ended or a signal comes.
    pub(super) fn wait_for_end(self, stop: &Stop) -> anyhow::Result<ExitCode> {
        let Self { mount, mut client, volume, id } = self;
        let to_end = Arc::clone(&mount);
        wait(&mount, stop, move || wait_for_end(&mut client, &volume, id, &to_end))
    }
}

/// Waits until the server reports the end of mount `id`. If the server is about to end, it asks for
/// the removal of the mount: removes the mount and waits for the outcome.
fn wait_for_end(
    client: &mut ControlClient,
    volume: &str,
    id: u64,
    mount: &DirMount,
) -> Result<Response, ControlError> {
    let mut ask =
        |is_taken| client.call(Request::MountWait { volume: volume.to_owned(), id, is_taken });
    match ask(false)? {
        Response::MountEnded { is_to_end: true } => {
            // The server wants to end. The directory is free before the server hears that.
            take_away(mount);
            ask(true)
        }
        ended => Ok(ended),
    }
}

/// Waits until `ended` returns, or for a signal. After a signal, removes the mount.
fn wait(
    mount: &DirMount,
    stop: &Stop,
    ended: impl FnOnce() -> Result<Response, ControlError> + Send + 'static,
) -> anyhow::Result<ExitCode> {
    let waiting = std::thread::Builder::new().name("mount".into()).spawn(ended);
    let waiting = waiting.context("cannot wait for the mount's end")?;
    // The request blocks, so a thread waits for its answer while this one watches the signals.
    stop.wait_unless(|| waiting.is_finished());
    if !waiting.is_finished() {
        take_away(mount);
        // The server answers once everything is durable. A hung server must not hold this command
        // forever.
        let deadline = Instant::now() + END_TIME_MAX;
        while !waiting.is_finished() && Instant::now() < deadline {
            std::thread::sleep(LOOK);
        }
    }
    if !waiting.is_finished() {
        return Err(anyhow!(
            "unmounted although programs have files open: the server has not said that everything is \
             durable"
        ));
    }
    match waiting.join() {
        // An aborted mount ends like an unmounted one for the server. Only the connection shows the
        // loss.
        Ok(Ok(Response::MountEnded { is_to_end: false })) if mount.was_aborted() => {
            take_away(mount);
            Err(anyhow!("{}", Loss::Aborted))
        }
        Ok(Ok(Response::MountEnded { is_to_end: false })) => Ok(ExitCode::SUCCESS),
        Ok(Ok(other)) => Err(unexpected(&other)),
        Ok(Err(error)) => {
            take_away(mount);
            Err(anyhow::Error::from(error).context("the mount has ended with its server"))
        }
        Err(_) => Err(anyhow!("the thread that waits for the mount's end has panicked")),
    }
}

fn take_away(mount: &DirMount) {
    // The user's umount or the server was faster. Both are fine.
    if !mount.detach() {
        tracing::debug!("the mount was taken away already");
    }
}
