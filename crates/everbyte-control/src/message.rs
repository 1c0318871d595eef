//! Messages on the control socket. Commands print the same types as JSON.
//!
//! Invariant: every change that an older program would misread raises [`PROTOCOL_VERSION`].

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::files::{
    FileEntry, FileLeak, FilePlace, FileRequest, FileSpace, FileStatus, UnreadableEntry,
};
use crate::health::{DeletedStatus, HealthStatus};
use crate::stats::{PoolMetrics, PoolStats};

/// Version of the protocol, in every message.
pub const PROTOCOL_VERSION: u32 = 1;

/// A client's request.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "command", content = "with", rename_all = "kebab-case", deny_unknown_fields)]
#[non_exhaustive]
pub enum Request {
    /// The pool and its volumes in figures; answered with `Pool`.
    Info,
    /// A check of the pool; answered with `Check`.
    Check,
    /// A part of a scrub; answered with `Scrub`. A program that scrubs a pool requests first the
    /// parts outside volumes and then each volume's.
    Scrub {
        /// The volume to read; `None` for superblocks, headers and logs.
        volume: Option<String>,
        /// Identity of that volume. The request is refused if another volume has its name now.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        uid: Option<u64>,
        /// The byte to begin at.
        from: u64,
    },
    /// Growing the pool to `size_bytes`; answered with `Grown`.
    Grow {
        /// The size wanted, in bytes.
        size_bytes: u64,
    },
    /// A new volume; answered with `Volume`.
    VolumeCreate(NewVolume),
    /// All volumes; answered with `Volumes`.
    VolumeList,
    /// Another size for a volume; answered with `Volume`.
    VolumeResize {
        /// Its name.
        name: String,
        /// The size wanted, in bytes.
        size_bytes: u64,
        /// Disconnects clients that would see the smaller volume.
        #[serde(default, skip_serializing_if = "is_unset")]
        force: bool,
    },
    /// Another name for a volume; answered with `Volume`.
    VolumeRename {
        /// Its name.
        name: String,
        /// The name wanted.
        new_name: String,
        /// Disconnects its clients first.
        #[serde(default, skip_serializing_if = "is_unset")]
        force: bool,
    },
    /// The end of a volume; answered with `Deleted`.
    VolumeDelete {
        /// Its name.
        name: String,
        /// Deletes it even while clients have it open.
        force: bool,
    },
    /// Deletes a cache after its backing device has all writes; answered with `Deleted`.
    VolumeDetach {
        /// Its name.
        name: String,
        /// Disconnects its clients first.
        #[serde(default, skip_serializing_if = "is_unset")]
        force: bool,
    },
    /// Write-back of dirty pages of a cache for about a second; answered with `Drained`. Clients
    /// must have disconnected. A program that detaches a cache repeats this until all pages are
    /// clean, and then sends `VolumeDetach`.
    CacheDrain {
        /// Its name.
        name: String,
        /// Disconnects its clients first.
        #[serde(default, skip_serializing_if = "is_unset")]
        force: bool,
    },
    /// New sizes of a cache; `None` keeps a size. Answered with `Volume`.
    CacheResize {
        /// Its name.
        name: String,
        /// Bytes of DRAM.
        dram_bytes: Option<u64>,
        /// Bytes of SCM.
        scm_bytes: Option<u64>,
        /// Grows the cache to the size of its larger backing device.
        follow_backing: bool,
        /// Disconnects its clients first.
        #[serde(default, skip_serializing_if = "is_unset")]
        force: bool,
    },
    /// The new place of a cache's backing device; answered with `Volume`.
    CacheAttach {
        /// Its name.
        name: String,
        /// The backing device: an absolute path or an NBD URI.
        backing: String,
        /// Disconnects its clients first.
        #[serde(default, skip_serializing_if = "is_unset")]
        force: bool,
    },
    /// The connections of clients; answered with `Clients`.
    ClientList,
    /// The end of a connection; answered with `Disconnected`.
    ClientDisconnect {
        /// Its number.
        id: u64,
    },
    /// Counts since the pool was opened; answered with `Stats`.
    Stats,
    /// Figures of a served pool; answered with `Metrics`.
    Metrics,
    /// The server's process, addresses and exports; answered with `Serving`.
    Exports,
    /// A look at the files of a file system, or a change of them.
    Files {
        /// The file system's volume.
        volume: String,
        /// The look or the change.
        request: FileRequest,
    },
    /// A mount of a file system, with its descriptor of `/dev/fuse`; answered with `Mounted`.
    Mount(MountServed),
    /// Waits until a mount has ended, or must end because the server ends; answered with
    /// `MountEnded`. In the second case the client removes the mount from its directory, and sends
    /// the request again.
    MountWait {
        /// The file system's volume.
        volume: String,
        /// Number of the mount.
        id: u64,
        /// It was taken from its directory, as was asked: waits until the pool is closed.
        #[serde(default, skip_serializing_if = "is_unset")]
        is_taken: bool,
    },
    /// Runs of a swap volume for the requesting program. One end of its pair of sockets comes with
    /// the request. The descriptor of the pool with the locks of the runs goes back through it.
    /// Answered with `Lent`.
    Lend {
        /// The swap volume.
        volume: String,
        /// Wanted bytes, rounded up to whole runs of 2 MiB. The server lends at least one run, and
        /// fewer than wanted if no more are free.
        bytes: u64,
    },
}

impl Request {
    /// Number of bytes after the request's line.
    #[must_use]
    pub fn attached_bytes(&self) -> u32 {
        if let Self::Files { request, .. } = self { request.attached_bytes() } else { 0 }
    }
}

/// A mounted file system for the server to serve.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MountServed {
    /// The file system's volume.
    pub volume: String,
    /// The directory, for lists. The server does nothing with it.
    pub dir: String,
    /// Nothing may be changed.
    pub read_only: bool,
    /// Threads for requests, 1 to 256.
    pub threads: u16,
    /// Reads that change the last access time: `relative`, `never` or `strict`.
    pub atime: String,
    /// Listings change no times of directories.
    #[serde(default, skip_serializing_if = "is_unset")]
    pub no_dir_atime: bool,
}

/// A new volume. Its strings are words of the command line.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NewVolume {
    /// Its name.
    pub name: String,
    /// Its kind.
    pub kind: String,
    /// Its size in bytes.
    pub size_bytes: u64,
    /// Mode of change detection, the comparison of writes with stored bytes.
    pub delta: String,
    /// Checksum of every block of data: `none` or `crc32c`.
    #[serde(default = "no_checksum", skip_serializing_if = "is_no_checksum")]
    pub checksum: String,
    /// Changed share of a block, in percent, from which on it is replaced instead of logged.
    pub threshold_percent: u32,
    /// Bytes of its log; `None` for a size by the volume's size.
    pub log_bytes: Option<u64>,
    /// Lanes of its log.
    pub lanes: u32,
    /// Dirty lines of 64 bytes that start a background checkpoint; `None` for the default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint_lines: Option<u32>,
    /// Settings of a cache; `None` for other kinds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache: Option<Box<NewCache>>,
    /// Settings of a file system; `None` for the defaults, and for other kinds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fs: Option<Box<NewFs>>,
    /// A swap volume wipes runs before it lends or frees them.
    #[serde(default, skip_serializing_if = "is_unset")]
    pub wipe: bool,
}

/// Settings of a new file system. Words are those of the command line.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NewFs {
    /// The index over inode tables.
    pub index: String,
    /// Bytes of a node of the index; `None` for its default size.
    pub index_node_bytes: Option<u32>,
    /// Most inodes; `None` for a number by the size.
    pub inodes_max: Option<u64>,
    /// Inode tables have 2 MiB instead of 4 KiB.
    pub large_tables: bool,
}

/// A new cache. Its strings are words of the command line.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NewCache {
    /// The backing device: an absolute path or an NBD URI.
    pub backing: String,
    /// Bytes of DRAM.
    pub dram_bytes: u64,
    /// Bytes of SCM.
    pub scm_bytes: u64,
    /// Write mode: the moment at which the backing device gets clients' writes.
    pub mode: String,
    /// Replacement policy.
    pub policy: String,
    /// Writes of at most this many bytes are small.
    pub small_write_bytes: u16,
}

/// The checksum of volumes from older clients, which send none.
fn no_checksum() -> String {
    "none".to_owned()
}

/// Omitted, so that servers of older versions understand.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_unset(flag: &bool) -> bool {
    !flag
}

/// Omitted, so that servers of older versions understand.
fn is_no_checksum(word: &str) -> bool {
    word == "none"
}

/// Cause of a refusal, if something can be done about it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Cause {
    /// No volume has the requested name.
    NoSuchVolume,
    /// No client has the requested number.
    NoSuchClient,
    /// Clients have the volume open before a change.
    HasClients,
    /// Clients have the volume open before its deletion.
    DeletedUnderClients,
    /// The pool is served, and must not be changed.
    ServedReadOnly,
    /// A cache was given another backing device than its own.
    OtherBacking,
    /// The backing device of a cache has grown.
    BackingGrown,
    /// The backing device of a cache has shrunk.
    BackingShrunk,
    /// A cache cannot write its own volume.
    CacheReadOnly,
    /// A cache is as large as its backing device, and was to have another size.
    CacheSize,
    /// A cache to delete has bytes that its backing device lacks.
    CacheDirty,
    /// The number of a cache's dirty bytes is unreadable.
    CacheUnread,
    /// No file has the requested name.
    NoSuchFile,
    /// A file has the requested name.
    FileExists,
    /// The file system has no room.
    FilesFull,
    /// The pool has too little free space for the volume.
    PoolFull,
    /// The volume is damaged.
    VolumeDamaged,
    /// The name or its file is damaged.
    FileDamaged,
    /// The server is shutting down. Another can serve the pool afterwards.
    ShuttingDown,
    /// Others can change the pool, so the server does not use its rights for files named in it.
    UntrustedPool,
    /// A cause unknown to this version.
    #[serde(other)]
    Other,
}

/// A server's answer.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "answer", content = "with", rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Response {
    /// The pool in figures.
    Pool(Box<PoolStatus>),
    /// Results of a check.
    Check(CheckStatus),
    /// Results of a part of a scrub.
    Scrub(ScrubPart),
    /// The pool has grown.
    Grown {
        /// Its size now, in bytes.
        size_bytes: u64,
    },
    /// A volume in figures.
    Volume(VolumeStatus),
    /// All volumes in figures, by name.
    Volumes(Vec<VolumeStatus>),
    /// The volume was deleted.
    Deleted(DeletedStatus),
    /// A cache was written back in part.
    Drained {
        /// Bytes of pages that are still dirty.
        dirty_bytes: u64,
    },
    /// The connections of clients, the oldest of each address first.
    Clients(Vec<ClientStatus>),
    /// A connection was ended.
    Disconnected {
        /// Its former number.
        id: u64,
        /// True if the connection is in an endless request. The connection ends with that request.
        stuck: bool,
    },
    /// Counts.
    Stats(PoolStats),
    /// Figures of a served pool.
    Metrics(Box<PoolMetrics>),
    /// The server's process, addresses and exports.
    Serving(ServingStatus),
    /// A place in a file system, and the file there.
    FileFound {
        /// The name in its directory; `None` if the path leads to the root, or ends in `.` or `..`.
        at: Option<FilePlace>,
        /// The file; `None` if the name is unused.
        file: Option<Box<FileStatus>>,
    },
    /// Entries of a directory.
    FileEntries {
        /// The entries.
        entries: Vec<FileEntry>,
        /// Entries with unreadable files.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        unreadable: Vec<UnreadableEntry>,
        /// Damaged parts of the directory, with lost names.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        damage: Vec<String>,
        /// The place to go on from; `None` at the end.
        next: Option<u64>,
    },
    /// Bytes of a file, sent after the line.
    FileBytes {
        /// Number of bytes.
        len: u32,
    },
    /// Data ranges of a file, ascending: start and end.
    FileData {
        /// The ranges.
        ranges: Vec<(u64, u64)>,
        /// The file's size in bytes.
        size_bytes: u64,
        /// The byte to go on from; `None` if no data follow.
        next: Option<u64>,
    },
    /// A request about files was carried out.
    FileDone,
    /// A damaged name was removed.
    FileDropped(FileLeak),
    /// The space of a file system.
    FileSpace(FileSpace),
    /// A file system is mounted.
    Mounted {
        /// Number of the mount.
        id: u64,
    },
    /// A mount has ended, or is to be ended.
    MountEnded {
        /// True if the server ends and waits for the mount's end.
        is_to_end: bool,
    },
    /// Runs of a swap volume were lent, and the descriptor was sent.
    Lent {
        /// Usable bytes of the pool's file: start and end, ascending, multiples of 2 MiB.
        ranges: Vec<(u64, u64)>,
    },
}

impl Response {
    /// Number of bytes after the answer's line.
    pub(crate) fn attached_bytes(&self) -> u32 {
        if let Self::FileBytes { len } = self { *len } else { 0 }
    }
}

/// A pool in figures.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PoolStatus {
    /// Its file or device.
    pub path: String,
    /// Identity, 32 hexadecimal digits.
    pub uid: String,
    /// Bytes of the whole pool.
    pub size_bytes: u64,
    /// Bytes used by volumes, including their logs and maps.
    pub used_bytes: u64,
    /// Free bytes.
    pub free_bytes: u64,
    /// True if little is free.
    pub low_on_space: bool,
    /// Bytes promised to volumes: the sum of their sizes.
    pub provisioned_bytes: u64,
    /// Persistence domain: the pool survives the loss of `power`, or only the end of the `process`.
    pub survives: String,
    /// The medium of the pool.
    pub medium: MediumStatus,
    /// True if the last shutdown was clean.
    pub clean: bool,
    /// Health, as far as it is known without a check.
    pub health: HealthStatus,
    /// Undo records applied at opening.
    pub records_undone: u64,
    /// Texts about all repairs at opening and all unusable parts.
    pub remarks: Vec<String>,
    /// The reason if the pool is read-only.
    pub read_only: Option<String>,
    /// Volumes there can be.
    pub volumes_max: u64,
    /// Volumes there are, by name.
    pub volumes: Vec<VolumeStatus>,
    /// Its server, if it is served.
    pub serving: Option<ServingStatus>,
}

/// The medium of a pool.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct MediumStatus {
    /// Kind of file or device.
    pub kind: String,
    /// Instruction for the flush of a line; `none` if none is needed.
    pub flush: String,
    /// Additional system call of a fence, if any.
    pub sync: Option<String>,
    /// Vector extension for copies and comparisons.
    pub copy: String,
    /// Technology with added costs, if any.
    pub emulates: Option<String>,
}

/// A volume in figures.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct VolumeStatus {
    /// Its name.
    pub name: String,
    /// Its kind.
    pub kind: String,
    /// Identity within the pool.
    pub uid: u64,
    /// Its size in bytes.
    pub size_bytes: u64,
    /// Used bytes of data and map; `None` if its map is unreadable.
    pub used_bytes: Option<u64>,
    /// Bytes of its log.
    pub log_bytes: u64,
    /// Lanes of its log.
    pub lanes: u32,
    /// Mode of change detection, the comparison of writes with stored bytes.
    pub delta: String,
    /// Checksum of every block of data: `none` or `crc32c`.
    #[serde(default = "no_checksum")]
    pub checksum: String,
    /// Number of lines to log from which on a block is replaced.
    pub threshold_lines: u32,
    /// Dirty lines of 64 bytes that start a background checkpoint; 0 if its server does not report
    /// it.
    #[serde(default)]
    pub checkpoint_lines: u64,
    /// Last durable epoch.
    pub epoch: u64,
    /// State in a word or a few: `ok`, `damaged`, `read-only`, `mounted`, `unknown kind`, or that
    /// of a cache.
    #[serde(default)]
    pub state: String,
    /// The damage, if any is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub damage: Option<String>,
    /// The reason if it is read-only.
    pub read_only: Option<String>,
    /// Clients with this volume open, if it is served.
    pub clients: Option<u64>,
    /// Clients with the size from before the request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clients_with_old_size: Option<u64>,
    /// The directory of its mount, if it is mounted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mounted_on: Option<String>,
    /// Figures of its kind alone.
    #[serde(flatten)]
    pub of_kind: Option<KindStatus>,
}

impl VolumeStatus {
    /// Returns the figures of a cache; `None` for other kinds.
    #[must_use]
    pub fn cache(&self) -> Option<&CacheStatus> {
        match &self.of_kind {
            Some(KindStatus::Cache(cache)) => Some(cache),
            _ => None,
        }
    }

    /// Returns the figures of a swap volume; `None` for other kinds.
    #[must_use]
    pub fn swap(&self) -> Option<&SwapStatus> {
        match &self.of_kind {
            Some(KindStatus::Swap(swap)) => Some(swap),
            _ => None,
        }
    }
}

/// Figures of one kind alone, under the name of the kind.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum KindStatus {
    /// Of a cache.
    Cache(Box<CacheStatus>),
    /// Of a swap volume.
    Swap(SwapStatus),
}

/// How much of a swap volume programs have.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct SwapStatus {
    /// Bytes lent to programs.
    pub lent_bytes: u64,
    /// The processes with leases of this server. The processes of earlier servers' leases are
    /// unknown.
    pub pids: Vec<u32>,
}

/// A cache in figures.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct CacheStatus {
    /// State: `open`, `opening`, `changing` or `closed`; if it cannot be used, the reason in two or
    /// three words, such as `backing missing`, `backing silent` or `backing refused`.
    #[serde(default)]
    pub state: String,
    /// The full reason for that state, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Its backing device: a path or an NBD URI.
    pub backing: String,
    /// Bytes of its backing device.
    pub backing_bytes: u64,
    /// Bytes of DRAM.
    pub dram_bytes: u64,
    /// Bytes of SCM.
    pub scm_bytes: u64,
    /// Write mode: the moment at which the backing device gets clients' writes.
    pub mode: String,
    /// Replacement policy.
    pub policy: String,
    /// Bytes of cached pages.
    pub cached_bytes: u64,
    /// Of these, bytes of dirty pages. The backing device may have older bytes of them.
    pub dirty_bytes: u64,
    /// Accesses with the page in the cache, in thousandths; `None` if the cache is not in use.
    pub hit_permille: Option<u64>,
    /// Counts since it was opened; empty if it is not in use.
    pub counts: BTreeMap<String, u64>,
    /// Counts of pages filled, moved, dropped and evicted since then, by `action/reason`.
    pub reasons: BTreeMap<String, u64>,
}

/// Results of a check.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct CheckStatus {
    /// True if nothing is wrong.
    pub clean: bool,
    /// Volumes with a walked map.
    pub volumes: u64,
    /// Blocks owned by volumes, including logs and maps.
    pub used_blocks: u64,
    /// Free blocks.
    pub free_blocks: u64,
    /// All problems, each with structure and offset.
    pub problems: Vec<String>,
    /// Damage repaired at opening.
    pub remarks: Vec<String>,
    /// Health by the worst of the problems.
    pub health: HealthStatus,
    /// Bytes that are unusable until a repair, because no volume owns them.
    pub leaked_bytes: u64,
}

/// Results of a part of a scrub.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ScrubPart {
    /// Bytes read.
    pub read_bytes: u64,
    /// Blocks of data with a compared checksum.
    pub verified_blocks: u64,
    /// Health by the worst of the problems.
    pub health: HealthStatus,
    /// The byte of the volume to go on at; `None` at its end.
    pub next: Option<u64>,
    /// All problems.
    pub problems: Vec<ScrubProblem>,
}

/// A problem found by a scrub.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ScrubProblem {
    /// The volume it belongs to, if to one.
    pub volume: Option<String>,
    /// The damaged structure.
    pub structure: String,
    /// The first affected byte of the volume, if any.
    pub offset: Option<u64>,
    /// Its offset in the pool, in bytes.
    pub pool_offset: u64,
    /// The damage, in words.
    pub what: String,
}

/// A pool's server: its process, addresses and exports.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ServingStatus {
    /// The server's process.
    pub pid: u32,
    /// True if the pool is served read-only.
    pub read_only: bool,
    /// Addresses it listens on.
    pub addresses: Vec<String>,
    /// The exported volumes.
    pub exports: Vec<ExportStatus>,
    /// The users with write access to the pool's bytes; `None` if the server does not report them.
    #[serde(default)]
    pub writers: Option<WritersStatus>,
}

/// The users with write access to a pool's bytes. Root always has it and is not listed.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct WritersStatus {
    /// Users, each with the reason.
    pub users: Vec<(u32, String)>,
    /// The reason for further or unknown users.
    pub more: Option<String>,
}

impl WritersStatus {
    /// The first reason for write access of a user other than root and `own`, in words.
    #[must_use]
    pub fn reason(&self, own: u32) -> Option<&str> {
        let mut others = self.users.iter().filter(|(uid, _)| *uid != own && *uid != 0);
        self.more.as_deref().or_else(|| others.next().map(|(_, reason)| reason.as_str()))
    }
}

impl ServingStatus {
    /// Its addresses for people, after `before`; nothing if it listens on the control socket alone.
    #[must_use]
    pub fn shown_addresses(&self, before: &str) -> String {
        match self.addresses.is_empty() {
            true => String::new(),
            false => format!("{before}{}", self.addresses.join(", ")),
        }
    }
}

/// An export.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ExportStatus {
    /// The volume's name.
    pub name: String,
    /// URIs for clients.
    pub uris: Vec<String>,
}

/// A connection of a client.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ClientStatus {
    /// Its number, for a disconnection.
    pub id: u64,
    /// Its peer.
    pub peer: String,
    /// The address of the connection.
    pub address: String,
    /// Its volume; `None` before its choice.
    pub export: Option<String>,
    /// Milliseconds since it connected.
    pub age_ms: u64,
    /// Milliseconds since its last message.
    pub idle_ms: u64,
    /// Requests, failed ones included.
    pub requests: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub written_bytes: u64,
}

/// A request on the wire.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RequestLine {
    pub(crate) version: u32,
    pub(crate) request: Request,
}

/// An answer on the wire: either a response or an error.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct ResponseLine {
    pub(crate) version: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) response: Option<Response>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) error: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) cause: Option<Cause>,
}
