//! Backing devices of caches: files, block devices, and exports of NBD servers.
//!
//! Owns the opening of a device by its name, the rights for it, its identity in the cache's header, and the detection of
//! common bytes.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use everbyte_cache::Identity;
use everbyte_device::{
    BackingIdentity, BlockDevice, Decorator, FileDevice, FileDeviceError, FileOptions,
    IdentityMatch, Passthrough, stable_path,
};
use everbyte_media::Stack;
use everbyte_path::Rights;

use super::claims::Claim;
use super::error::BackingError;
use super::export::{self, Cancel, is_uri, local_export};
use super::options::Options;
use super::watch::{IoWatchdog, Outcome, TimedTask};

/// The facts about a backing device, open or not.
#[derive(Clone, Debug)]
pub struct KnownBacking {
    /// The identity for the records of a cache.
    pub identity: Identity,
    /// The objects below a file or block device; `None` if it is absent or an export.
    pub stack: Option<Arc<Stack>>,
}

impl KnownBacking {
    /// The facts about the recorded backing device `identity`, with the stack of the device `found`
    /// under its name unless `found` is another device.
    #[must_use]
    pub fn recorded(identity: Identity, found: Option<Self>) -> Self {
        let found =
            found.filter(|found| found.identity.compare(&identity) != IdentityMatch::Different);
        Self { identity, stack: found.and_then(|found| found.stack) }
    }
}

/// A backing device. It is open, and locked if it is a file.
pub struct Backing {
    /// Its bytes.
    pub device: Arc<dyn BlockDevice>,
    /// The identity for the records of a cache.
    pub identity: Identity,
    /// The objects below, if it is a file or a block device.
    pub stack: Option<Arc<Stack>>,
}

impl Backing {
    /// The facts about it.
    #[must_use]
    pub fn known(&self) -> KnownBacking {
        KnownBacking { identity: self.identity.clone(), stack: self.stack.clone() }
    }
}

/// A file or block device without bytes in common with another device of this process.
struct ClaimedDevice {
    device: FileDevice,
    _claim: Arc<Claim>,
}

impl Decorator for ClaimedDevice {
    type Inner = FileDevice;
    const PASSTHROUGH: Passthrough = Passthrough::Whole;

    fn inner(&self) -> &FileDevice {
        &self.device
    }
}

/// `text` as every process understands it: a URI as it is, a path made absolute.
///
/// # Errors
/// The file does not exist, or its path is not UTF-8.
pub fn resolve(text: &str) -> Result<String, BackingError> {
    if is_uri(text) {
        return Ok(text.to_owned());
    }
    let missing = |source| BackingError::NotFound { text: text.to_owned(), source };
    let path = stable_path(Path::new(text)).map_err(missing)?;
    path.into_os_string().into_string().map_err(|_| BackingError::Name { text: text.to_owned() })
}

/// Opens the file, block device or NBD URI `text`. The wait for a file or a block device has no
/// limit. `cancel` ends the wait for an export, and also all later waits for its answers. A
/// write-protected file or device is opened read-only.
///
/// # Errors
/// It cannot be opened with the rights of the options, or is in use, or shares bytes with an open device of this
/// process.
pub fn open(
    text: &str,
    options: &Options,
    cancel: Option<Cancel>,
) -> Result<Backing, BackingError> {
    if let Rights::Nothing(reason) = &options.rights {
        return Err(BackingError::Untrusted { text: text.to_owned(), reason: reason.to_string() });
    }
    let opened = match is_uri(text) {
        true => open_export(text, options, cancel),
        false => open_file(text, options),
    };
    opened.map_err(|error| match options.rights.user() {
        Some(uid) => BackingError::Rights { uid, source: Box::new(error) },
        None => error,
    })
}

fn open_export(
    text: &str,
    options: &Options,
    cancel: Option<Cancel>,
) -> Result<Backing, BackingError> {
    let device = export::open(text, options, cancel)?;
    Ok(Backing { device, identity: export_identity(text), stack: None })
}

fn export_identity(uri: &str) -> Identity {
    let (kind, name) = ("nbd".to_owned(), uri.to_owned());
    Identity { kind, name, serial: String::new(), backing: None }
}

fn open_file(text: &str, options: &Options) -> Result<Backing, BackingError> {
    let path = Path::new(text);
    let failed = |error| FileDeviceError::Io { path: path.to_owned(), error };
    let found = options.rights.find(path).map_err(failed)?;
    // The objects below are not the user's to see: this process inspects them with its own rights.
    let stack = Arc::new(Stack::of(&found).map_err(failed)?);
    let protection = stack.write_protection();
    let file = FileOptions { direct: options.direct };
    let opening = || FileDevice::open_protected(path, file, protection);
    let device = options.rights.run(opening).map_err(failed)??;
    let identity = |file: &std::fs::File| file.metadata().map(|m| (m.dev(), m.ino()));
    // The stack and the claim describe `found`: the opened file must be the same.
    if identity(&found).map_err(failed)? != identity(device.file()).map_err(failed)? {
        let error = std::io::Error::other("another process replaced it");
        return Err(failed(error).into());
    }
    warn(text, &device);
    let name = device.path().to_str();
    let name = name.ok_or_else(|| BackingError::Name { text: text.to_owned() })?.to_owned();
    let identity = Identity {
        kind: if device.is_block() { "block" } else { "file" }.to_owned(),
        name,
        serial: device.serial().to_owned(),
        backing: Some(device.identity().clone()),
    };
    let claim = Claim::backing(Arc::clone(&stack), text)?;
    let device = Arc::new(ClaimedDevice { device, _claim: claim });
    Ok(Backing { device, identity, stack: Some(stack) })
}

/// Logs buffering and write protection.
fn warn(text: &str, device: &FileDevice) {
    if let Some(reason) = device.why_buffered() {
        tracing::warn!(
            "the file system of {text} does not let requests past its page cache ({reason}): they \
             go through it"
        );
    }
    if let Some(reason) = device.protection() {
        tracing::warn!("the backing device {text} is read-only: {reason}");
    }
}

/// As [`open`], on another thread. The caller waits for it no longer than `silence_max`.
///
/// # Errors
/// The errors of `open`, `Silent`, and `Thread`.
pub fn open_within(
    text: &str,
    options: &Options,
    silence_max: Duration,
) -> Result<Backing, BackingError> {
    let cancel = Cancel::new().ok();
    let (options, ending) = (options.clone(), cancel.clone());
    let opened =
        within("backing-open", text, silence_max, move |text| open(text, &options, ending));
    if let (Err(BackingError::Silent { .. }), Some(cancel)) = (&opened, cancel) {
        // The opening goes on without its caller. Nothing else ends its wait for an NBD server.
        cancel.cancel();
    }
    opened?
}

/// Runs `work` about the backing device `text` on another thread, and waits for it no longer than `silence_max`.
fn within<T: Send + 'static>(
    thread: &str,
    text: &str,
    silence_max: Duration,
    work: impl FnOnce(&str) -> T + Send + 'static,
) -> Result<T, BackingError> {
    let watch = Arc::<IoWatchdog>::default();
    let (name, working) = (text.to_owned(), Arc::clone(&watch));
    let task = TimedTask::begin(thread, &watch, move || {
        // All of the work counts as one request: it reports no progress.
        let _request = working.begin();
        work(&name)
    });
    match task.wait(silence_max) {
        Outcome::Done(done) => Ok(done),
        Outcome::Silent(silence) => Err(BackingError::Silent { text: text.to_owned(), silence }),
        Outcome::Failed(what) => Err(BackingError::Thread { text: text.to_owned(), what }),
    }
}

/// Returns the facts about the backing device `text` without opening it. Uses these rights, and waits no longer than
/// `silence_max`: the file system of a file may hang.
///
/// # Errors
/// `Silent` and `Thread`.
pub fn look_within(
    text: &str,
    rights: &Rights,
    silence_max: Duration,
) -> Result<KnownBacking, BackingError> {
    let rights = rights.clone();
    within("backing-look", text, silence_max, move |text| look_at(text, &rights))
}

fn look_at(text: &str, rights: &Rights) -> KnownBacking {
    if is_uri(text) {
        return KnownBacking { identity: export_identity(text), stack: None };
    }
    let path = Path::new(text);
    let found = rights.find(path).ok();
    let backing = found.as_ref().and_then(|found| BackingIdentity::of(found).ok());
    let is_file = matches!(backing, None | Some(BackingIdentity::File(_)));
    let stable = rights.run(|| stable_path(path)).ok().and_then(Result::ok);
    let identity = Identity {
        kind: if is_file { "file" } else { "block" }.to_owned(),
        name: stable.map_or_else(|| text.to_owned(), |path| path.display().to_string()),
        serial: String::new(),
        backing,
    };
    let stack = found.and_then(|found| Stack::of(&found).ok()).map(Arc::new);
    KnownBacking { identity, stack }
}

/// Returns true if a write to one backing device may change bytes of the other, as far as known. Stacks are followed down
/// to files and disks. An export with two hosts counts as two.
#[must_use]
pub fn share_bytes(one: &KnownBacking, other: &KnownBacking) -> bool {
    let local = |known: &KnownBacking| local_export(&known.identity.name);
    let do_stacks_share = match (&one.stack, &other.stack) {
        (Some(one), Some(other)) => one.shares_bytes_with(other),
        _ => false,
    };
    do_stacks_share
        || one.identity.shares_bytes_with(&other.identity)
        || local(one).is_some_and(|one| Some(one) == local(other))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hard_links_share_bytes() {
        let folder = tempfile::tempdir().unwrap();
        let [file, link, again, other] =
            ["file", "link", "again", "other"].map(|name| folder.path().join(name));
        std::fs::write(&file, "a").unwrap();
        std::fs::write(&other, "a").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        std::fs::hard_link(&file, &again).unwrap();
        let look = |path: &Path| look_at(path.to_str().unwrap(), &Rights::Own);
        let none = folder.path().join("none");
        for (path, shares) in
            [(&file, true), (&link, true), (&again, true), (&other, false), (&none, false)]
        {
            assert_eq!(share_bytes(&look(&file), &look(path)), shares, "{path:?}");
        }
        let uri = |socket: &Path, export: &str| {
            look_at(&format!("nbd+unix:///{export}?socket={}", socket.display()), &Rights::Own)
        };
        assert!(share_bytes(&uri(&file, "x"), &uri(&link, "x")));
        assert!(!share_bytes(&uri(&file, "x"), &uri(&file, "y")));
        assert!(!share_bytes(&uri(&file, "x"), &uri(&other, "x")));
        assert!(!share_bytes(&uri(&file, "x"), &look(&file)));
        let within =
            look_within(link.to_str().unwrap(), &Rights::Own, Duration::from_secs(60)).unwrap();
        assert!(share_bytes(&look(&file), &within));
    }

    #[test]
    fn absent_file_is_missing() {
        let error = resolve("/none/such").unwrap_err();
        assert!(error.is_missing() && error.to_string().contains("/none/such"), "{error}");
        let error = open("/none/such", &Options::default(), None).err().unwrap();
        assert!(error.is_missing(), "{error}");
        let uri = "nbd+unix:///x?socket=/none/such";
        let error = open(uri, &Options::default(), None).err().unwrap();
        assert!(error.is_missing() && resolve(uri).unwrap() == uri, "{error}");
    }

    /// A loop device over a file, detached when dropped.
    struct Loop(String);

    impl Loop {
        fn over(image: &str) -> Option<Self> {
            let made = std::process::Command::new("losetup").args(["-f", "--show", image]).output();
            let made = made.ok().filter(|output| output.status.success())?;
            Some(Self(String::from_utf8(made.stdout).ok()?.trim().to_owned()))
        }
    }

    impl Drop for Loop {
        fn drop(&mut self) {
            // The kernel keeps a read-only flag for the next user of the device.
            let _ = std::process::Command::new("blockdev").args(["--setrw", &self.0]).status();
            let _ = std::process::Command::new("losetup").args(["-d", &self.0]).status();
        }
    }

    #[test]
    fn devices_sharing_bytes_open_once() {
        let folder = tempfile::tempdir().unwrap();
        let image = folder.path().join("image");
        std::fs::File::create(&image).unwrap().set_len(1 << 20).unwrap();
        let image = image.to_str().unwrap();
        let Some(lower) = Loop::over(image) else { return };
        let Some(upper) = Loop::over(&lower.0) else { return };
        let open = |text: &str| open(text, &Options::default(), None);
        for first in [image, &lower.0, &upper.0] {
            let opened = open(first).unwrap();
            for second in [image, &lower.0, &upper.0] {
                let refused = open(second).err().unwrap();
                let is_named =
                    matches!(&refused, BackingError::Shared { other, .. } if other.contains(first));
                assert!(is_named || first == second, "{first} {second}: {refused}");
            }
            drop(opened);
        }
        let file = std::fs::File::open(image).unwrap();
        let claim = Claim::medium(Arc::new(Stack::of(&file).unwrap()), Path::new("/pool"));
        let refused = open(&upper.0).err().unwrap().to_string();
        assert!(refused.contains("the pool /pool"), "{refused}");
        drop(claim);
        open(&upper.0).unwrap();
    }

    #[test]
    fn write_protection_below_is_read_only() {
        let folder = tempfile::tempdir().unwrap();
        let image = folder.path().join("image");
        std::fs::File::create(&image).unwrap().set_len(1 << 20).unwrap();
        let Some(lower) = Loop::over(image.to_str().unwrap()) else { return };
        let Some(upper) = Loop::over(&lower.0) else { return };
        let is_read_only = || {
            let opened = open(&upper.0, &Options::default(), None).unwrap();
            opened.device.geometry().read_only
        };
        let set = |flag: &str| {
            let done = std::process::Command::new("blockdev").args([flag, &lower.0]).status();
            assert!(done.unwrap().success());
        };
        assert!(!is_read_only());
        set("--setro");
        assert!(is_read_only());
        set("--setrw");
        assert!(!is_read_only());
    }

    #[test]
    fn rights_bound_backing_devices() {
        use std::os::unix::fs::{PermissionsExt, chown, symlink};
        const USER: u32 = 54321;
        let folder = tempfile::tempdir().unwrap();
        if chown(folder.path(), Some(USER), None).is_err() {
            return;
        }
        std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        let [own, roots, link] = ["own", "roots", "link"].map(|name| folder.path().join(name));
        for path in [&own, &roots] {
            std::fs::write(path, vec![0; 8192]).unwrap();
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).unwrap();
        }
        chown(&own, Some(USER), None).unwrap();
        symlink(&roots, &link).unwrap();
        let open = |path: &Path, rights: &Rights| {
            let options = Options { rights: rights.clone(), ..Options::default() };
            open(path.to_str().unwrap(), &options, None).map(drop)
        };
        let rights = Rights::of_user(USER);
        open(&own, &rights).unwrap();
        for path in [&roots, &link] {
            let refused = open(path, &rights).unwrap_err().to_string();
            assert!(refused.contains("rights of user 54321"), "{refused}");
            open(path, &Rights::Own).unwrap();
        }
        let file = std::fs::File::open(&roots).unwrap();
        std::fs::set_permissions(&roots, std::fs::Permissions::from_mode(0o666)).unwrap();
        let magic = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file));
        open(Path::new(&magic), &rights).unwrap_err();
        let nothing = Rights::Nothing("every user can write it".into());
        let refused = open(&own, &nothing).unwrap_err().to_string();
        assert!(refused.contains("every user can write it"), "{refused}");
    }
}
