//! The file system as a subject of operations.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use everbyte_media::{BLOCK_U64, Medium};
use everbyte_pool::{OpenOptions, Pool, PoolError};

use super::operations::{
    FileSnapshot, Mode, Op, RECENT, Subject, Tree, UMASK, acl_value, numbered_name, target, written,
};
use everbyte_fs::{
    Allocation, FileFlags, FilePlace, FileSystem, FileType, FsError, FsOptions, InodeNo, Name,
    NewInode, OpenFile, PinLimits, RenameMode, SetAttr, SetAttribute, SetTime, View, ViewError,
    kinds,
};

/// A file system with its open files.
pub struct Real<M: Medium> {
    /// The file system.
    pub fs: Arc<FileSystem<M>>,
    hands: [Option<InodeNo>; 4],
    opened: Option<OpenFile<M>>,
    views: [Option<HeldView<M>>; 4],
}

/// A view of a file, and its first bytes.
struct HeldView<M: Medium> {
    view: View<M>,
    bytes: Vec<u8>,
}

/// Limits of views above the needs of any test.
const LIMITS: PinLimits =
    PinLimits { pins_max: 64, bytes_max: 64 << 20, time_max: Duration::from_secs(1 << 20) };

/// Opens the pool on `medium` with file systems as the only kind.
///
/// # Errors
/// The pool's.
pub fn open_pool<M: Medium>(medium: &Arc<M>) -> Result<Arc<Pool<M>>, PoolError> {
    let options = OpenOptions { capacity_blocks: (medium.len() / BLOCK_U64).max(1 << 12) };
    Pool::open(Arc::clone(medium), kinds(), &options).map(Arc::new)
}

/// Limit of a file's bytes in a snapshot.
const BYTES_SEEN: u64 = 16 << 20;

impl<M: Medium> Real<M> {
    /// Formats `medium` and makes a file system in it.
    pub fn make(medium: &Arc<M>, options: &FsOptions) -> Self {
        Pool::format(&**medium, 2, [1; 16]).unwrap();
        let pool = open_pool(medium).unwrap();
        let size = medium.len() / BLOCK_U64 * BLOCK_U64;
        let fs = FileSystem::create(&pool, "files", size, options).unwrap();
        Self::sharing(Arc::new(fs))
    }

    /// Opens the file system on `medium`.
    ///
    /// # Errors
    /// The pool's.
    pub fn open(medium: &Arc<M>) -> Result<Self, PoolError> {
        let fs = FileSystem::open(&open_pool(medium)?, "files")?;
        Ok(Self::sharing(Arc::new(fs)))
    }

    /// Another user of `fs` with separate hands.
    pub fn sharing(fs: Arc<FileSystem<M>>) -> Self {
        // Explored runs take no real time, but a slow machine must not end a view by its deadline.
        fs.volume().set_pin_limits(LIMITS);
        Self { fs, hands: [None; 4], opened: None, views: Default::default() }
    }

    fn find(&self, path: &[&str]) -> Result<InodeNo, FsError> {
        path.iter().try_fold(self.fs.root(), |at, name| {
            Ok(self.fs.lookup(at, Name::new(name.as_bytes())?)?.inode)
        })
    }

    fn parent<'p>(&self, path: &'p [&'static str]) -> Result<(InodeNo, Name<'p>), FsError> {
        let (name, parent) = path.split_last().expect("a path has a name");
        Ok((self.find(parent)?, Name::new(name.as_bytes())?))
    }

    fn create(
        &self,
        path: &[&'static str],
        kind: FileType,
        permissions: u32,
        target: &[u8],
    ) -> Result<(), FsError> {
        let (parent, name) = self.parent(path)?;
        let new = NewInode { kind, permissions, umask: UMASK, uid: 1, gid: 2, device: 0, target };
        self.fs.create_inode(parent, name, &new).map(drop)
    }

    fn close(&mut self, hand: usize) -> Result<(), FsError> {
        self.hands[hand].take().map_or(Ok(()), |inode| self.fs.close_inode(inode))
    }

    fn view(&mut self, path: &[&'static str], hand: usize) -> Result<(), FsError> {
        let view = self.fs.view(self.find(path)?, 0, usize::MAX)?;
        let mut bytes = vec![0; view.len()];
        let read = view.read(0, &mut bytes);
        // These bytes are the reference of all later looks, so they must be complete.
        assert!(matches!(read, Ok(len) if len == bytes.len()), "{path:?}: {read:?}");
        self.views[hand] = Some(HeldView { view, bytes });
        Ok(())
    }

    /// The first bytes of the view in a hand.
    pub fn viewed(&self, hand: usize) -> Option<&[u8]> {
        self.views[hand].as_ref().map(|viewed| &viewed.bytes[..])
    }

    /// Reads the view in a hand again, if it has not ended.
    ///
    /// # Errors
    /// Other bytes, or a read error.
    pub fn look_at_view(&self, hand: usize) -> Result<(), String> {
        let Some(HeldView { view, bytes }) = &self.views[hand] else { return Ok(()) };
        let mut now = vec![0; bytes.len()];
        match view.read(0, &mut now) {
            Ok(_) if now == *bytes => Ok(()),
            Ok(_) => {
                let at = now.iter().zip(bytes).position(|(now, then)| now != then);
                Err(format!("a view of {} bytes has another one at {at:?}", bytes.len()))
            }
            // A checkpoint or a lack of space may end any view. Only other bytes are a mistake.
            Err(ViewError::Ended) => Ok(()),
            Err(error) => Err(error.to_string()),
        }
    }

    fn give_names(&self, dir: &[&str], numbers: Range<u32>) -> Result<(), FsError> {
        let (file, dir) = (self.find(&["a"])?, self.find(dir)?);
        numbers.into_iter().try_for_each(|number| {
            let name = numbered_name(number);
            self.fs.link(file, dir, Name::new(name.as_bytes())?).map(drop)
        })
    }

    fn make_files(&self, dir: &[&str], count: u32) -> Result<(), FsError> {
        let dir = self.find(dir)?;
        (0..count).try_for_each(|number| {
            let name = format!("file {number}");
            self.fs.create_inode(dir, Name::new(name.as_bytes())?, &FILE).map(drop)
        })
    }

    fn act(&mut self, op: &Op) -> Result<(), FsError> {
        match op {
            Op::Create(path, mode) => self.create(path, FileType::Regular, *mode, &[]),
            Op::Mkdir(path, mode) => self.create(path, FileType::Directory, mode & !0o2000, &[]),
            Op::Fifo(path) => self.create(path, FileType::Fifo, 0o600, &[]),
            Op::Symlink(path, len) => self.create(path, FileType::Symlink, 0o777, &target(*len)),
            Op::Link(old, new) => {
                let inode = self.find(old)?;
                let (parent, name) = self.parent(new)?;
                self.fs.link(inode, parent, name).map(drop)
            }
            Op::Unlink(path) => self.parent(path).and_then(|(p, name)| self.fs.unlink(p, name)),
            Op::Rmdir(path) => {
                self.parent(path).and_then(|(p, name)| self.fs.remove_directory(p, name))
            }
            Op::Rename(from, to, mode) => {
                let mode = match mode {
                    Mode::Replace => RenameMode::Replace,
                    Mode::NoReplace => RenameMode::NoReplace,
                    Mode::Exchange => RenameMode::Exchange,
                    Mode::Whiteout => RenameMode::Whiteout { uid: 1, gid: 2, replaces: true },
                    Mode::NewWhiteout => RenameMode::Whiteout { uid: 1, gid: 2, replaces: false },
                };
                let from = self.parent(from)?;
                self.fs.lookup(from.0, from.1)?;
                self.fs.rename(from, self.parent(to)?, mode)
            }
            Op::Names(path, first, count) => self.give_names(path, *first..first + count),
            Op::Files(path, count) => self.make_files(path, *count),
            Op::Tables(count) => (0..*count).try_for_each(|_| self.fs.add_inode_table()),
            Op::Open(path, hand) => {
                let inode = self.find(path)?;
                self.close(*hand)?;
                self.hands[*hand] = Some(self.fs.open_inode(inode)?.inode);
                Ok(())
            }
            Op::Unnamed(path, permissions, hand) => {
                let directory = self.find(path)?;
                let new = NewInode { permissions: *permissions, umask: UMASK, ..FILE };
                let made = self.fs.create_unnamed(directory, &new)?;
                self.close(*hand)?;
                self.hands[*hand] = Some(made.inode);
                Ok(())
            }
            Op::LinkHand(hand, path) => {
                let inode = self.hands[*hand].ok_or(FsError::NotFound)?;
                let (parent, name) = self.parent(path)?;
                self.fs.link(inode, parent, name).map(drop)
            }
            Op::Copy { paths: [from, to], offsets, len } => {
                let from = FilePlace { inode: self.find(from)?, offset: offsets[0] };
                let to = FilePlace { inode: self.find(to)?, offset: offsets[1] };
                self.fs.copy(from, to, *len).map(drop)
            }
            Op::Close(hand) => self.close(*hand),
            Op::View(path, hand) => self.view(path, *hand),
            Op::LookAtView(hand) => {
                let looked = self.look_at_view(*hand);
                assert!(looked.is_ok(), "{looked:?}");
                Ok(())
            }
            Op::EndView(hand) => {
                self.views[*hand] = None;
                Ok(())
            }
            Op::SyncFile(path) => self.fs.sync_inode(self.find(path)?),
            Op::Sync => self.fs.sync(),
            _ => self.change_file(op),
        }
    }

    /// Makes an operation that changes bytes or attributes of a file.
    fn change_file(&self, op: &Op) -> Result<(), FsError> {
        match op {
            Op::Write { path, offset, len, byte } => {
                let data = written(*offset, *len, *byte);
                let done = self.fs.write(self.find(path)?, *offset, &data)?;
                assert_eq!(done, *len);
                Ok(())
            }
            Op::WriteDurably { path, offset, len, byte } => {
                let data = written(*offset, *len, *byte);
                let done = self.fs.write_durably(self.find(path)?, *offset, &data)?;
                assert_eq!(done, *len);
                Ok(())
            }
            Op::Truncate(path, size) => self.fs.truncate(self.find(path)?, *size).map(drop),
            Op::Allocate { path, offset, len, what, keep_size } => {
                let what = match what {
                    'r' => Allocation::Reserve,
                    'z' => Allocation::Zero,
                    _ => Allocation::Punch,
                };
                self.fs.allocate(self.find(path)?, (*offset, *len), what, *keep_size)
            }
            Op::Chmod(path, permissions) => {
                let inode = self.find(path)?;
                let is_dir = self.fs.attr(inode)?.kind == FileType::Directory;
                let permissions = if is_dir { permissions & !0o2000 } else { *permissions };
                let set = SetAttr { permissions: Some(permissions), ..SetAttr::default() };
                self.fs.set_attr(inode, &set).map(drop)
            }
            Op::Flags(path, bits) => {
                let flags = FileFlags::from_bits(*bits).expect("a test sets known flags");
                self.fs.set_flags(self.find(path)?, flags).map(drop)
            }
            Op::Accessed(path, ns) => {
                let set = SetAttr { accessed: Some(SetTime::At(*ns)), ..SetAttr::default() };
                self.fs.set_attr(self.find(path)?, &set).map(drop)
            }
            Op::Attribute(path, name, len) => {
                let value = vec![5; *len];
                let (inode, attribute) = (self.find(path)?, (name.as_bytes(), &value[..]));
                self.fs.set_attribute(inode, attribute, SetAttribute::Any)
            }
            Op::RemoveAttribute(path, name) => {
                self.fs.remove_attribute(self.find(path)?, name.as_bytes())
            }
            Op::Acl(path, name, list) => {
                let (inode, value) = (self.find(path)?, acl_value(list));
                let attribute = (name.attribute().as_bytes(), &value[..]);
                self.fs.set_attribute(inode, attribute, SetAttribute::Any)
            }
            _ => unreachable!("{op:?} is no change of one file"),
        }
    }

    /// The bytes of a file, from one read.
    ///
    /// # Errors
    /// The file system's.
    pub fn bytes(&self, path: &[&'static str]) -> Result<Vec<u8>, FsError> {
        let inode = self.find(path)?;
        let mut bytes = vec![0; 1 << 20];
        let len = self.fs.read(inode, 0, &mut bytes)?;
        bytes.truncate(len);
        Ok(bytes)
    }

    /// The bytes of a file that is opened at the first call and stays open.
    ///
    /// # Errors
    /// The file system's.
    pub fn bytes_of_opened(&mut self, path: &[&'static str]) -> Result<Vec<u8>, FsError> {
        let file = match self.opened.take() {
            Some(file) => file,
            None => self.fs.open_file(self.find(path)?)?,
        };
        let mut bytes = vec![0; 1 << 20];
        let read = self.fs.read_file(&file, 0, &mut bytes);
        // Also after an error: the file stays open for the next call.
        self.opened = Some(file);
        bytes.truncate(read?);
        Ok(bytes)
    }

    /// The names in a directory, in the order of the list.
    ///
    /// # Errors
    /// The file system's.
    pub fn names(&self, path: &[&'static str]) -> Result<Vec<String>, FsError> {
        let inode = self.find(path)?;
        let (mut names, mut place) = (Vec::new(), 0);
        loop {
            let entries = self.fs.list(inode, place)?;
            let Some(last) = entries.last() else { return Ok(names) };
            place = last.next;
            names.extend(entries.into_iter().map(|entry| String::from_utf8(entry.name).unwrap()));
        }
    }

    fn see(
        &self,
        inode: InodeNo,
        path: &str,
        firsts: &mut BTreeMap<InodeNo, String>,
        tree: &mut Tree,
    ) -> Result<(), FsError> {
        let attr = self.fs.attr(inode)?;
        let (kind, bytes) = match attr.kind {
            FileType::Regular => {
                let mut bytes = vec![0; usize::try_from(attr.size.min(BYTES_SEEN)).unwrap() + 7];
                let len = self.fs.read(inode, 0, &mut bytes)?;
                bytes.truncate(len);
                ('f', bytes)
            }
            FileType::Directory => ('d', Vec::new()),
            FileType::Symlink => ('l', self.fs.read_link(inode)?),
            FileType::CharDevice => ('c', Vec::new()),
            _ => ('p', Vec::new()),
        };
        let first_path = firsts.entry(inode).or_insert_with(|| path.to_owned()).clone();
        let (permissions, links, size) = (attr.permissions, attr.links, attr.size);
        let mut attributes = Vec::new();
        for name in self.fs.attribute_names(inode)? {
            let value = self.fs.attribute(inode, &name)?;
            attributes.push((String::from_utf8(name).unwrap(), value));
        }
        // The program lists attributes in the order of the block, and the model by name.
        attributes.sort();
        let accessed = Some(attr.accessed_ns).filter(|ns| !RECENT.contains(ns)).unwrap_or(0);
        let seen = FileSnapshot {
            first_path,
            kind,
            permissions,
            links,
            size,
            bytes,
            attributes,
            flags: attr.flags.bits(),
            accessed,
        };
        tree.insert(path.to_owned(), seen);
        if attr.kind == FileType::Directory {
            let mut names = BTreeMap::new();
            let mut place = 0;
            loop {
                let entries = self.fs.list(inode, place)?;
                let Some(last) = entries.last() else { break };
                place = last.next;
                for entry in entries {
                    let name = String::from_utf8(entry.name).unwrap();
                    // A listing in parts must have each name once, also across bucket splits.
                    assert!(names.insert(name, entry.inode).is_none(), "a name is listed twice");
                }
            }
            for (name, below) in names {
                self.see(below, &format!("{path}/{name}"), firsts, tree)?;
            }
        }
        Ok(())
    }

    /// Performs an operation on a possibly damaged tree.
    ///
    /// # Errors
    /// The file system's.
    pub fn try_make(&mut self, op: &Op) -> Result<(), FsError> {
        self.act(op)
    }

    /// The visible state.
    ///
    /// # Errors
    /// The file system's.
    pub fn try_tree(&self) -> Result<Tree, FsError> {
        let mut tree = Tree::new();
        self.see(self.fs.root(), "", &mut BTreeMap::new(), &mut tree)?;
        Ok(tree)
    }
}

const FILE: NewInode<'_> = NewInode {
    kind: FileType::Regular,
    permissions: 0o644,
    umask: 0,
    uid: 0,
    gid: 0,
    device: 0,
    target: &[],
};

impl<M: Medium> Subject for Real<M> {
    fn make(&mut self, op: &Op) -> Result<(), i32> {
        self.act(op).map_err(|error| {
            // No operation of a sound file system may report damage, and the media of tests have
            // enough space.
            let is_damage = error.errno() == 5;
            assert!(!is_damage && !matches!(error, FsError::NoSpace), "{op:?}: {error}");
            error.errno()
        })
    }

    fn tree(&self) -> Tree {
        self.try_tree().unwrap()
    }
}
