//! A model of a file system in plain maps.

use std::collections::BTreeMap;

use super::operations::{
    AclEntry, AclName, FileSnapshot, Mode, Op, RECENT, Subject, Tree, UMASK, acl_value,
    numbered_name, target, written,
};

const EPERM: i32 = 1;
const ENOENT: i32 = 2;
const EACCES: i32 = 13;
const EEXIST: i32 = 17;
const ENOTDIR: i32 = 20;
const EISDIR: i32 = 21;
const EINVAL: i32 = 22;
const ENOSPC: i32 = 28;
const ENAMETOOLONG: i32 = 36;
const ENOTEMPTY: i32 = 39;
const ENODATA: i32 = 61;
const EOPNOTSUPP: i32 = 95;

const IMMUTABLE: u32 = 0x10;
const APPEND_ONLY: u32 = 0x20;
/// Flags that new files get from their directory.
const INHERITED: u32 = 0xc0;
/// Seconds since 1970 that a time can have.
const SECONDS: std::ops::Range<i128> = -(1 << 31)..(1 << 34) - (1 << 31);

#[derive(Clone, PartialEq, Eq, Debug)]
enum Content {
    File(Vec<u8>),
    Dir(BTreeMap<String, usize>),
    Link(Vec<u8>),
    Fifo,
    Whiteout,
}

#[derive(Clone, PartialEq, Eq, Debug)]
struct Node {
    what: Content,
    permissions: u32,
    links: u32,
    parent: usize,
    attributes: BTreeMap<&'static str, Vec<u8>>,
    access: Vec<AclEntry>,
    default: Vec<AclEntry>,
    /// True if it never had a name.
    is_unnamed: bool,
    flags: u32,
    /// Time of the last access; 0 for a recent one.
    accessed: i128,
}

impl Node {
    fn new(what: Content, permissions: u32, parent: usize) -> Self {
        let links = if matches!(what, Content::Dir(_)) { 2 } else { 1 };
        let attributes = BTreeMap::new();
        let (access, default) = (Vec::new(), Vec::new());
        Self {
            what,
            permissions,
            links,
            parent,
            attributes,
            access,
            default,
            is_unnamed: false,
            flags: 0,
            accessed: 0,
        }
    }

    /// Fails if the immutable flag is set.
    fn check_mutable(&self) -> Result<(), i32> {
        if self.flags & IMMUTABLE != 0 { Err(EPERM) } else { Ok(()) }
    }

    /// Fails if either flag is set.
    fn check_unrestricted(&self) -> Result<(), i32> {
        if self.flags & (IMMUTABLE | APPEND_ONLY) != 0 { Err(EPERM) } else { Ok(()) }
    }

    /// Fails if the flags forbid a write at `offset` of a file with so many bytes.
    fn check_write(&self, offset: u64, bytes: usize) -> Result<(), i32> {
        // An append-only file accepts bytes from its end on.
        if at(offset) < bytes { self.check_unrestricted() } else { self.check_mutable() }
    }

    /// All attributes, lists among them.
    fn all_attributes(&self) -> BTreeMap<&'static str, Vec<u8>> {
        let mut all = self.attributes.clone();
        for (name, list) in [(AclName::Access, &self.access), (AclName::Default, &self.default)] {
            if !list.is_empty() {
                all.insert(name.attribute(), acl_value(list));
            }
        }
        all
    }

    fn has_room(&self) -> bool {
        let all = self.all_attributes();
        // One block without its head; an entry has 3 bytes of lengths.
        all.iter().map(|(name, value)| 3 + name.len() + value.len()).sum::<usize>() <= 4084
    }
}

/// The entries with the permissions of a mode, and their shifts: owner, mask or else group, others.
fn in_mode(list: &mut [AclEntry]) -> Vec<(&mut u16, u32)> {
    // With a mask the group bits of the mode are the mask's, as POSIX.1e defines.
    let group = if list.iter().any(|entry| entry.0 == 16) { 16 } else { 4 };
    let places = list.iter_mut().filter_map(|(tag, permissions, _)| match *tag {
        1 => Some((permissions, 6)),
        32 => Some((permissions, 0)),
        other if other == group => Some((permissions, 3)),
        _ => None,
    });
    places.collect()
}

fn mode_of(list: &mut [AclEntry]) -> u32 {
    in_mode(list).into_iter().map(|(permissions, shift)| u32::from(*permissions) << shift).sum()
}

fn is_valid(list: &[AclEntry]) -> bool {
    let has = |tag| list.iter().any(|entry| entry.0 == tag);
    // Entries of named users or groups require a mask.
    list.is_sorted_by_key(|entry| entry.0) && (has(16) || !(has(2) || has(8)))
}

/// The model. Nodes are never dropped, so their numbers are stable.
#[derive(Clone, Debug)]
pub struct Model(Vec<Node>, [Option<usize>; 4]);

impl Default for Model {
    fn default() -> Self {
        Self::new()
    }
}

impl Model {
    /// An empty tree.
    #[must_use]
    pub fn new() -> Self {
        let what = Content::Dir(BTreeMap::new());
        Self(vec![Node::new(what, 0o755, 0)], [None; 4])
    }

    fn dir(&mut self, node: usize) -> Result<&mut BTreeMap<String, usize>, i32> {
        match &mut self.0[node].what {
            Content::Dir(names) => Ok(names),
            _ => Err(ENOTDIR),
        }
    }

    fn is_dir(&self, node: usize) -> bool {
        matches!(self.0[node].what, Content::Dir(_))
    }

    fn is_empty(&self, node: usize) -> bool {
        matches!(&self.0[node].what, Content::Dir(names) if names.is_empty())
    }

    fn entries(&self, node: usize) -> Result<&BTreeMap<String, usize>, i32> {
        match &self.0[node].what {
            Content::Dir(names) => Ok(names),
            _ => Err(ENOTDIR),
        }
    }

    fn find(&self, path: &[&str]) -> Result<usize, i32> {
        path.iter().try_fold(0, |at, name| self.entries(at)?.get(*name).copied().ok_or(ENOENT))
    }

    /// The names of a file, with the directories that they are in.
    fn names(&self, node: usize) -> Vec<(usize, &str)> {
        let in_dir = |dir| {
            let entries = self.entries(dir).into_iter().flatten();
            entries.filter(move |entry| *entry.1 == node).map(move |(name, _)| (dir, name.as_str()))
        };
        (0..self.0.len()).flat_map(in_dir).collect()
    }

    /// Returns true if the file at `path` is unchanged since `earlier`, a past state of this model: its bytes
    /// or entries, attributes and names. Renamed directories above it and changed files below it do not
    /// count. False without such a file.
    #[must_use]
    pub fn is_unchanged_since(&self, earlier: &Self, path: &[&str]) -> bool {
        self.find(path).is_ok_and(|node| {
            earlier.0.get(node) == self.0.get(node) && earlier.names(node) == self.names(node)
        })
    }

    /// Removes from `allowed`, the allowed models after a crash, the models that a sync of the file at `path`
    /// excludes. The file must be as now, and so must every operation answered before its last change. The
    /// last model is the present.
    pub fn note_synced(allowed: &mut Vec<Self>, path: &[&str]) {
        // The last model is the present, and stays allowed.
        let Some(now) = allowed.last() else { return };
        // A checkpoint covers all earlier operations, so every model up to the last difference is
        // excluded.
        let changed = allowed.iter().rposition(|earlier| !now.is_unchanged_since(earlier, path));
        allowed.drain(..changed.map_or(0, |before| before + 1));
    }

    fn parent<'p>(&self, path: &'p [&'static str]) -> Result<(usize, &'p str), i32> {
        let (name, parent) = path.split_last().expect("a path has a name");
        Ok((self.find(parent)?, name))
    }

    fn make_node(
        &mut self,
        path: &[&'static str],
        what: Content,
        permissions: u32,
    ) -> Result<(), i32> {
        let (parent, name) = self.parent(path)?;
        self.make_node_in(parent, name.to_owned(), what, permissions)
    }

    fn make_node_in(
        &mut self,
        parent: usize,
        name: String,
        what: Content,
        permissions: u32,
    ) -> Result<(), i32> {
        let number = self.0.len();
        let names = self.dir(parent)?;
        if names.contains_key(&name) {
            return Err(EEXIST);
        }
        self.0[parent].check_mutable()?;
        self.dir(parent)?.insert(name, number);
        let is_dir = matches!(what, Content::Dir(_));
        // The `..` of a subdirectory is a name of its parent.
        self.0[parent].links += u32::from(is_dir);
        let new = self.inheriting(what, permissions, parent);
        self.0.push(new);
        Ok(())
    }

    /// A node with the attributes inherited from its directory.
    fn inheriting(&self, what: Content, permissions: u32, parent: usize) -> Node {
        let mut node = Node::new(what, permissions, parent);
        node.flags = self.0[parent].flags & INHERITED;
        let default = &self.0[parent].default;
        // As on Linux, a symbolic link has neither a mask nor a list.
        if matches!(node.what, Content::Link(_)) {
            return node;
        }
        if default.is_empty() {
            node.permissions &= !UMASK;
            return node;
        }
        node.access.clone_from(default);
        for (allowed, shift) in in_mode(&mut node.access) {
            *allowed &= u16::try_from(permissions >> shift & 7).unwrap();
        }
        node.permissions = permissions & 0o7000 | mode_of(&mut node.access);
        // A list of the three classes says no more than the mode, so it is not stored.
        if node.access.len() == 3 {
            node.access.clear();
        }
        if matches!(node.what, Content::Dir(_)) {
            node.default.clone_from(default);
        }
        node
    }

    fn remove(&mut self, path: &[&'static str], directory: bool) -> Result<(), i32> {
        let (parent, name) = self.parent(path)?;
        let node = *self.dir(parent)?.get(name).ok_or(ENOENT)?;
        self.0[parent].check_unrestricted()?;
        self.0[node].check_unrestricted()?;
        match (directory, self.is_dir(node)) {
            (false, true) => return Err(EISDIR),
            (true, false) => return Err(ENOTDIR),
            (true, true) if !self.is_empty(node) => return Err(ENOTEMPTY),
            _ => {}
        }
        self.dir(parent)?.remove(name);
        self.unname(parent, node);
        Ok(())
    }

    fn unname(&mut self, parent: usize, node: usize) {
        if self.is_dir(node) {
            self.0[parent].links -= 1;
            self.0[node].links = 0;
        } else {
            self.0[node].links -= 1;
        }
    }

    fn is_within(&self, mut node: usize, ancestor: usize) -> bool {
        while node != 0 && node != ancestor {
            node = self.0[node].parent;
        }
        node == ancestor
    }

    fn moved(&mut self, node: usize, from: usize, to: usize) {
        if self.is_dir(node) {
            self.0[node].parent = to;
            self.0[from].links -= 1;
            self.0[to].links += 1;
        }
    }

    fn rename(
        &mut self,
        from: &[&'static str],
        to: &[&'static str],
        mode: Mode,
    ) -> Result<(), i32> {
        let (from_dir, from_name) = self.parent(from)?;
        let source = *self.dir(from_dir)?.get(from_name).ok_or(ENOENT)?;
        let (to_dir, to_name) = self.parent(to)?;
        let target = self.dir(to_dir)?.get(to_name).copied();
        match (mode, target) {
            (Mode::NoReplace | Mode::NewWhiteout, Some(_)) => return Err(EEXIST),
            (Mode::Exchange, None) => return Err(ENOENT),
            _ => {}
        }
        // Before the check for the same file, in the order of the program's errors.
        if self.is_within(to_dir, source) {
            return Err(EINVAL);
        }
        if target == Some(source) {
            return Ok(());
        }
        [from_dir, source].iter().try_for_each(|&node| self.0[node].check_unrestricted())?;
        match target {
            Some(target) => {
                [to_dir, target].iter().try_for_each(|&node| self.0[node].check_unrestricted())?;
            }
            None => self.0[to_dir].check_mutable()?,
        }
        if let (Some(target), Mode::Exchange) = (target, mode) {
            if self.is_within(from_dir, target) {
                return Err(EINVAL);
            }
            self.dir(from_dir)?.insert(from_name.into(), target);
            self.dir(to_dir)?.insert(to_name.into(), source);
            self.moved(source, from_dir, to_dir);
            self.moved(target, to_dir, from_dir);
            return Ok(());
        }
        if let Some(target) = target {
            match (self.is_dir(source), self.is_dir(target)) {
                (true, false) => return Err(ENOTDIR),
                (false, true) => return Err(EISDIR),
                (true, true) if !self.is_empty(target) => return Err(ENOTEMPTY),
                _ => {}
            }
            self.unname(to_dir, target);
        }
        self.dir(from_dir)?.remove(from_name);
        self.dir(to_dir)?.insert(to_name.into(), source);
        self.moved(source, from_dir, to_dir);
        // After the move: the device takes the name that the move has freed.
        if matches!(mode, Mode::Whiteout | Mode::NewWhiteout) {
            return self.make_node_in(from_dir, from_name.into(), Content::Whiteout, 0);
        }
        Ok(())
    }

    /// The bytes of a file.
    ///
    /// # Errors
    /// The error number of writing to it.
    pub fn bytes(&mut self, path: &[&'static str]) -> Result<&mut Vec<u8>, i32> {
        let node = self.find(path)?;
        match &mut self.0[node].what {
            Content::File(bytes) => Ok(bytes),
            Content::Dir(_) => Err(EISDIR),
            _ => Err(EINVAL),
        }
    }

    fn allocate(
        &mut self,
        path: &[&'static str],
        (offset, len): (u64, u64),
        what: char,
        keep_size: bool,
    ) -> Result<(), i32> {
        // A missing file is reported before an empty range.
        self.find(path)?;
        if len == 0 {
            return Err(EINVAL);
        }
        self.bytes(path)?;
        let node = &self.0[self.find(path)?];
        // A reservation changes no byte, so an append-only file allows it.
        if what == 'r' { node.check_mutable() } else { node.check_unrestricted() }?;
        let (bytes, end) = (self.bytes(path)?, at(offset + len));
        // A punch never changes the size.
        if !keep_size && what != 'p' {
            bytes.resize(bytes.len().max(end), 0);
        }
        let (start, end) = (at(offset).min(bytes.len()), end.min(bytes.len()));
        if what != 'r' {
            bytes[start..end].fill(0);
        }
        Ok(())
    }

    fn attribute(
        &mut self,
        path: &[&'static str],
        name: &'static str,
        len: usize,
    ) -> Result<(), i32> {
        let node = self.find(path)?;
        self.0[node].check_unrestricted()?;
        let mut changed = self.0[node].clone();
        changed.attributes.insert(name, vec![5; len]);
        self.replace(node, changed)
    }

    fn replace(&mut self, node: usize, changed: Node) -> Result<(), i32> {
        if !changed.has_room() {
            return Err(ENOSPC);
        }
        self.0[node] = changed;
        Ok(())
    }

    fn acl(&mut self, path: &[&'static str], name: AclName, list: &[AclEntry]) -> Result<(), i32> {
        let node = self.find(path)?;
        let mut changed = self.0[node].clone();
        match &changed.what {
            _ if !is_valid(list) => return Err(EINVAL),
            // The order of these errors is the program's: both models must give the same one.
            _ if changed.check_unrestricted().is_err() => return Err(EPERM),
            Content::Link(_) => return Err(EOPNOTSUPP),
            Content::Dir(_) => {}
            _ if name == AclName::Default => {
                return if list.is_empty() { Ok(()) } else { Err(EACCES) };
            }
            _ => {}
        }
        if name == AclName::Default {
            changed.default = list.to_vec();
            return self.replace(node, changed);
        }
        changed.access = list.to_vec();
        if !list.is_empty() {
            changed.permissions = changed.permissions & 0o7000 | mode_of(&mut changed.access);
        }
        if list.len() == 3 {
            changed.access.clear();
        }
        self.replace(node, changed)
    }

    fn chmod(&mut self, path: &[&'static str], permissions: u32) -> Result<(), i32> {
        let node = self.find(path)?;
        self.0[node].check_unrestricted()?;
        // Without set-group-id: its inheritance has a separate test.
        let permissions = if self.is_dir(node) { permissions & !0o2000 } else { permissions };
        self.0[node].permissions = permissions;
        for (allowed, shift) in in_mode(&mut self.0[node].access) {
            *allowed = u16::try_from(permissions >> shift & 7).unwrap();
        }
        Ok(())
    }

    fn flags(&mut self, path: &[&'static str], bits: u32) -> Result<(), i32> {
        let node = self.find(path)?;
        let node = &mut self.0[node];
        match node.what {
            Content::File(_) | Content::Dir(_) => {}
            _ => return Err(EOPNOTSUPP),
        }
        // A set immutable flag protects the others, unless the same call clears it.
        if node.flags & bits & IMMUTABLE != 0 && node.flags != bits {
            return Err(EPERM);
        }
        node.flags = bits;
        Ok(())
    }

    fn link(&mut self, old: &[&'static str], new: &[&'static str]) -> Result<(), i32> {
        let node = self.find(old)?;
        let (parent, name) = self.parent(new)?;
        self.link_node(node, parent, name.to_owned())
    }

    fn link_node(&mut self, node: usize, parent: usize, name: String) -> Result<(), i32> {
        if self.dir(parent)?.contains_key(&name) {
            return Err(EEXIST);
        }
        self.0[parent].check_mutable()?;
        self.0[node].check_unrestricted()?;
        if self.is_dir(node) {
            return Err(EPERM);
        }
        // A file that has lost its last name never gets another one.
        if self.0[node].links == 0 && !self.0[node].is_unnamed {
            return Err(ENOENT);
        }
        self.dir(parent)?.insert(name, node);
        self.0[node].is_unnamed = false;
        self.0[node].links += 1;
        Ok(())
    }

    fn copy(
        &mut self,
        [from, to]: [&[&'static str]; 2],
        offsets: [u64; 2],
        len: u64,
    ) -> Result<(), i32> {
        let is_same = self.find(from)? == self.find(to)?;
        let source = self.bytes(from)?.clone();
        let target_bytes = self.bytes(to)?.len();
        let [start, to_start] = offsets.map(at);
        let len = at(len).min(source.len().saturating_sub(start));
        // Overlapping ranges of one file are refused, as by `copy_file_range`.
        if is_same && start.abs_diff(to_start) < len {
            return Err(EINVAL);
        }
        if len > 0 {
            self.0[self.find(to)?].check_write(offsets[1], target_bytes)?;
            let target = self.bytes(to)?;
            target.resize(target.len().max(to_start + len), 0);
            target[to_start..to_start + len].copy_from_slice(&source[start..start + len]);
        }
        Ok(())
    }

    fn make_unnamed(
        &mut self,
        path: &[&'static str],
        permissions: u32,
        hand: usize,
    ) -> Result<(), i32> {
        let directory = self.find(path)?;
        self.dir(directory)?;
        self.0[directory].check_mutable()?;
        let node = self.inheriting(Content::File(Vec::new()), permissions, directory);
        // Before the push, so it is the number of the new node.
        self.1[hand] = Some(self.0.len());
        self.0.push(Node { links: 0, is_unnamed: true, ..node });
        Ok(())
    }

    fn link_hand(&mut self, hand: usize, path: &[&'static str]) -> Result<(), i32> {
        let node = self.1[hand].ok_or(ENOENT)?;
        let (parent, name) = self.parent(path)?;
        self.link_node(node, parent, name.to_owned())
    }

    /// Closes all open files of the hands.
    pub fn close_all(&mut self) {
        self.1 = [None; 4];
    }

    /// Links the file `a` to one of many names.
    fn give_name(&mut self, dir: &[&'static str], number: u32) -> Result<(), i32> {
        let (file, dir) = (self.find(&["a"])?, self.find(dir)?);
        self.link_node(file, dir, numbered_name(number))
    }

    /// Creates one of many files.
    fn make_file(&mut self, dir: &[&'static str], number: u32) -> Result<(), i32> {
        let dir = self.find(dir)?;
        self.make_node_in(dir, format!("file {number}"), Content::File(Vec::new()), 0o644)
    }

    fn see(&self, node: usize, path: &str, firsts: &mut BTreeMap<usize, String>, tree: &mut Tree) {
        let Node { what, permissions, links, .. } = &self.0[node];
        let attributes = self.0[node].all_attributes().into_iter();
        let attributes = attributes.map(|(name, value)| (name.to_owned(), value)).collect();
        let (kind, size, bytes) = match what {
            Content::File(bytes) => ('f', bytes.len(), bytes.clone()),
            Content::Dir(names) => ('d', names.len(), Vec::new()),
            Content::Link(target) => ('l', target.len(), target.clone()),
            Content::Fifo => ('p', 0, Vec::new()),
            Content::Whiteout => ('c', 0, Vec::new()),
        };
        // Numbers of inodes differ between model and program. The lowest path identifies a file in
        // both.
        let first_path = firsts.entry(node).or_insert_with(|| path.to_owned()).clone();
        let (permissions, links) = (*permissions, *links);
        let (flags, accessed) = (self.0[node].flags, self.0[node].accessed);
        let seen = FileSnapshot {
            first_path,
            kind,
            permissions,
            links,
            size: size as u64,
            bytes,
            attributes,
            flags,
            accessed,
        };
        tree.insert(path.to_owned(), seen);
        if let Content::Dir(names) = what {
            for (name, &below) in names {
                self.see(below, &format!("{path}/{name}"), firsts, tree);
            }
        }
    }
}

impl Model {
    /// Makes an operation that changes bytes or attributes of a file.
    fn change_file(&mut self, op: &Op) -> Result<(), i32> {
        match op {
            Op::Write { path, offset, len, byte }
            | Op::WriteDurably { path, offset, len, byte } => {
                let bytes = self.bytes(path)?.len();
                self.0[self.find(path)?].check_write(*offset, bytes)?;
                let bytes = self.bytes(path)?;
                let (start, end) = (at(*offset), at(*offset) + len);
                if *len > 0 {
                    bytes.resize(bytes.len().max(end), 0);
                    bytes[start..end].copy_from_slice(&written(*offset, *len, *byte));
                }
                Ok(())
            }
            Op::Truncate(path, size) => {
                self.bytes(path)?;
                self.0[self.find(path)?].check_unrestricted()?;
                self.bytes(path)?.resize(at(*size), 0);
                Ok(())
            }
            Op::Allocate { path, offset, len, what, keep_size } => {
                self.allocate(path, (*offset, *len), *what, *keep_size)
            }
            Op::Chmod(path, permissions) => self.chmod(path, *permissions),
            Op::Flags(path, bits) => self.flags(path, *bits),
            Op::Accessed(path, ns) => {
                let node = self.find(path)?;
                self.0[node].check_unrestricted()?;
                // Euclidean, because times before 1970 are negative.
                if !SECONDS.contains(&ns.div_euclid(1_000_000_000)) {
                    return Err(EINVAL);
                }
                self.0[node].accessed = Some(*ns).filter(|ns| !RECENT.contains(ns)).unwrap_or(0);
                Ok(())
            }
            Op::Acl(path, name, list) => self.acl(path, *name, list),
            Op::Attribute(path, name, len) => self.attribute(path, name, *len),
            Op::RemoveAttribute(path, name) => {
                let node = self.find(path)?;
                self.0[node].check_unrestricted()?;
                self.0[node].attributes.remove(name).map(drop).ok_or(ENODATA)
            }
            _ => unreachable!("{op:?} is no change of one file"),
        }
    }
}

/// A place in a file.
fn at(offset: u64) -> usize {
    usize::try_from(offset).expect("files of tests are small")
}

impl Subject for Model {
    fn make(&mut self, op: &Op) -> Result<(), i32> {
        match op {
            Op::Create(path, permissions) => {
                self.make_node(path, Content::File(Vec::new()), *permissions)
            }
            Op::Mkdir(path, permissions) => {
                // A separate test covers inheritance from a directory with set-group-id.
                self.make_node(path, Content::Dir(BTreeMap::new()), permissions & !0o2000)
            }
            Op::Fifo(path) => self.make_node(path, Content::Fifo, 0o600),
            Op::Symlink(path, len) => {
                let (parent, _) = self.parent(path)?;
                if *len > 4095 {
                    return Err(ENAMETOOLONG);
                }
                self.dir(parent)?;
                self.make_node(path, Content::Link(target(*len)), 0o777)
            }
            Op::Link(old, new) => self.link(old, new),
            Op::Unlink(path) => self.remove(path, false),
            Op::Rmdir(path) => self.remove(path, true),
            Op::Rename(from, to, mode) => self.rename(from, to, *mode),
            Op::Open(path, hand) => {
                self.1[*hand] = Some(self.find(path)?);
                Ok(())
            }
            Op::SyncFile(path) => self.find(path).map(drop),
            Op::Unnamed(path, permissions, hand) => self.make_unnamed(path, *permissions, *hand),
            Op::LinkHand(hand, path) => self.link_hand(*hand, path),
            Op::Copy { paths: [from, to], offsets, len } => self.copy([from, to], *offsets, *len),
            Op::Names(path, first, count) => {
                (*first..first + count).try_for_each(|number| self.give_name(path, number))
            }
            Op::Files(path, count) => {
                (0..*count).try_for_each(|number| self.make_file(path, number))
            }
            Op::Close(hand) => {
                self.1[*hand] = None;
                Ok(())
            }
            Op::View(path, _) => self.bytes(path).map(drop),
            Op::Sync | Op::Tables(_) | Op::LookAtView(_) | Op::EndView(_) => Ok(()),
            _ => self.change_file(op),
        }
    }

    fn tree(&self) -> Tree {
        let mut tree = Tree::new();
        self.see(0, "", &mut BTreeMap::new(), &mut tree);
        tree
    }
}
