//! Path resolution, name by name, for callers without a kernel.

use everbyte_media::Medium;

use crate::attributes::stat::Attr;
use crate::dentry::file_name::Name;
use crate::error::FsError;
use crate::format::number::{FileType, InodeNo};
use crate::fs::FileSystem;
use crate::inode::inode_ref::InodeRef;

/// Limit of symbolic links in a walk, as on Linux.
const LINKS_FOLLOWED_MAX: u32 = 40;

/// The result of a path walk.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PathTarget {
    /// The directory and the last name; `None` if the path is empty or ends in `.`, `..` or `/`.
    pub place: Option<(InodeNo, Vec<u8>)>,
    /// The file; `None` if no file has this name.
    pub file: Option<Attr>,
}

/// The names of a path in reverse order. A trailing slash is a `.`, because it demands a directory.
fn reversed_parts(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    let end = path.ends_with(b"/").then_some(&b"."[..]);
    let parts = path.split(|&byte| byte == b'/').filter(|part| !part.is_empty());
    end.into_iter().chain(parts.rev())
}

/// Splits a path before its last name. `None` if it does not end in a name.
fn split_last(path: &[u8]) -> Option<(&[u8], &[u8])> {
    let start = path.iter().rposition(|&byte| byte == b'/').map_or(0, |slash| slash + 1);
    let (parents, last) = path.split_at(start);
    (!matches!(last, b"" | b"." | b"..")).then_some((parents, last))
}

impl<M: Medium> FileSystem<M> {
    /// The file at `path`, as [`FileSystem::locate`] finds it. Allocates no memory for a path of plain names.
    ///
    /// # Errors
    /// As [`FileSystem::locate`]; `NotFound` without a file.
    pub fn attr_at(&self, from: InodeNo, path: &[u8], follow: bool) -> Result<Attr, FsError> {
        let found = self.at_plain_place(from, path, |_, found| self.attr_of(found))?;
        // A link at the end has been found by its own name, and its target needs the general walk.
        if let Some(found) = found.filter(|found| !follow || found.kind != FileType::Symlink) {
            return Ok(found);
        }
        self.locate(from, path, follow)?.file.ok_or(FsError::NotFound)
    }

    /// Opens the file at `path`, as [`FileSystem::open_inode`] does. Follows symbolic links.
    ///
    /// # Errors
    /// As [`FileSystem::attr_at`].
    pub fn open_at(&self, from: InodeNo, path: &[u8]) -> Result<Attr, FsError> {
        let open = |kind, found| match kind {
            // Nothing is opened, and the caller takes the walk that follows links.
            FileType::Symlink => Ok(None),
            _ => self.open_found(found).map(Some),
        };
        if let Some(opened) = self.at_plain_place(from, path, open)?.flatten() {
            return Ok(opened);
        }
        self.at_located(from, path, |found| self.open_found(found))
    }

    /// Calls `act` with the file at a path of plain names; `None` for another path.
    pub(crate) fn at_plain_place<R>(
        &self,
        from: InodeNo,
        path: &[u8],
        act: impl Fn(FileType, InodeRef) -> Result<R, FsError>,
    ) -> Result<Option<R>, FsError> {
        let find = || match self.plain_place(from, path)? {
            Some((parent, name)) => {
                let found = self.find_entry(parent, name)?.ok_or(FsError::NotFound)?;
                Ok(Some((parent, found)))
            }
            None => Ok(None),
        };
        self.find_and(find, act)
    }

    /// Calls `act` with the file at any path.
    pub(crate) fn at_located<R>(
        &self,
        from: InodeNo,
        path: &[u8],
        act: impl Fn(InodeRef) -> Result<R, FsError>,
    ) -> Result<R, FsError> {
        loop {
            let attr = self.attr_at(from, path, true)?;
            match act(InodeRef::made_in(attr.inode, attr.generation)) {
                // The file was removed after the walk, so a new file may have the name.
                Err(FsError::Stale(_)) => {}
                acted => return acted,
            }
        }
    }

    /// The file named `name` in the directory with these attributes; `None` if the name is absent.
    fn lookup_in(&self, directory: &Attr, name: Name<'_>) -> Result<Option<Attr>, FsError> {
        // The error is used only after the check: it may be about another directory with the
        // number.
        let found = self.lookup(directory.inode, name);
        self.check_is(directory)?;
        match found {
            Err(FsError::NotFound) => Ok(None),
            found => found.map(Some),
        }
    }

    /// The parent of the directory with these attributes.
    fn above(&self, directory: &Attr) -> Result<Attr, FsError> {
        loop {
            let epoch = self.volume().current_epoch();
            let parent = self.parent(directory.inode);
            self.check_is(directory)?;
            let above = self.attr(parent?);
            // Otherwise the number of the parent may be reused.
            if self.volume().completed_epoch() < epoch {
                return above;
            }
        }
    }

    /// Checks that the number still belongs to the file with these attributes.
    ///
    /// # Errors
    /// `NotFound` if it does not; a damaged inode.
    fn check_is(&self, attr: &Attr) -> Result<(), FsError> {
        match self.attr_of(InodeRef::made_in(attr.inode, attr.generation)) {
            // The directory was removed during the walk, as if the path had been resolved
            // afterwards.
            Err(FsError::Stale(_)) => Err(FsError::NotFound),
            loaded => loaded.map(drop),
        }
    }

    /// The directory at the start of `path` and the last name. The file itself may be absent. Allocates no
    /// memory for a path of plain names.
    ///
    /// # Errors
    /// As [`FileSystem::locate`]; `InvalidName` if the path does not end in a name.
    pub fn place_at<'p>(
        &self,
        from: InodeNo,
        path: &'p [u8],
    ) -> Result<(InodeNo, Name<'p>), FsError> {
        let plain = loop {
            let epoch = self.volume().current_epoch();
            let place = self.plain_place(from, path);
            // Otherwise the numbers of directories in the path may be reused.
            if self.volume().completed_epoch() < epoch {
                break place?;
            }
        };
        if let Some(place) = plain {
            return Ok(place);
        }
        let (parents, last) = split_last(path).ok_or(FsError::InvalidName)?;
        Ok((self.attr_at(from, parents, true)?.inode, Name::new(last)?))
    }

    /// The directory and last name of a path of plain names. `None` if the path has `.`, `..` or a symbolic
    /// link, or does not end in a name.
    pub(crate) fn plain_place<'p>(
        &self,
        from: InodeNo,
        path: &'p [u8],
    ) -> Result<Option<(InodeNo, Name<'p>)>, FsError> {
        let Some((parents, last)) = split_last(path) else { return Ok(None) };
        let mut at = if path.starts_with(b"/") { self.root() } else { from };
        for part in parents.split(|&byte| byte == b'/').filter(|part| !part.is_empty()) {
            if matches!(part, b"." | b"..") {
                return Ok(None);
            }
            let found = self.find_entry(at, Name::new(part)?)?.ok_or(FsError::NotFound)?;
            match found.kind {
                FileType::Directory => at = found.inode,
                FileType::Symlink => return Ok(None),
                _ => return Err(FsError::NotDirectory),
            }
        }
        Ok(Some((at, Name::new(last)?)))
    }

    /// Resolves `path` from the directory `from`, or from the root if it begins with `/`. Follows up to 40
    /// symbolic links, and one at the end if `follow` is set: then the place is the link's target. The last
    /// name may be absent.
    ///
    /// # Errors
    /// `NotFound` or `NotDirectory` for a directory in the path; `TooManySymlinks`; `InvalidName` or
    /// `NameTooLong`; `Stale`; a damaged structure.
    pub fn locate(&self, from: InodeNo, path: &[u8], follow: bool) -> Result<PathTarget, FsError> {
        let start = if path.starts_with(b"/") { self.root() } else { from };
        let mut at = self.attr(start)?;
        let mut place = None;
        // Reversed, so that the names of a link's target go to the end in constant time.
        let mut left: Vec<Vec<u8>> = reversed_parts(path).map(<[u8]>::to_vec).collect();
        let mut followed = 0;
        while let Some(part) = left.pop() {
            match &part[..] {
                b"." | b".." if at.kind != FileType::Directory => {
                    return Err(FsError::NotDirectory);
                }
                b"." => place = None,
                b".." => (at, place) = (self.above(&at)?, None),
                name => match self.lookup_in(&at, Name::new(name)?)? {
                    Some(found)
                        if found.kind == FileType::Symlink && (follow || !left.is_empty()) =>
                    {
                        followed += 1;
                        // Two links to each other would be followed without end.
                        if followed > LINKS_FOLLOWED_MAX {
                            return Err(FsError::TooManySymlinks);
                        }
                        let target = self.read_link(found.inode);
                        self.check_is(&found)?;
                        let target = target?;
                        left.extend(reversed_parts(&target).map(<[u8]>::to_vec));
                        // Absolute targets begin at the root of the file system, which is the only
                        // root here.
                        if target.starts_with(b"/") {
                            (at, place) = (self.attr(self.root())?, None);
                        }
                    }
                    Some(found) => (place, at) = (Some((at.inode, part)), found),
                    // A directory to be created may have a slash behind its name.
                    None if left.iter().all(|part| part == b".") => {
                        return Ok(PathTarget { place: Some((at.inode, part)), file: None });
                    }
                    None => return Err(FsError::NotFound),
                },
            }
        }
        Ok(PathTarget { place, file: Some(at) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_splits_before_its_last_name() {
        let split = |path: &'static str| split_last(path.as_bytes());
        assert_eq!(split("a"), Some((&b""[..], &b"a"[..])));
        assert_eq!(split("/a//b"), Some((&b"/a//"[..], &b"b"[..])));
        for none in ["", "/", "a/", "a/.", ".."] {
            assert_eq!(split(none), None, "{none}");
        }
    }
}
