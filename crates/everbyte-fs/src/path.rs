//! Paths: walked name by name, without a kernel that does so.

use everbyte_media::Medium;

use crate::attr::Attr;
use crate::dentries::Dentry;
use crate::error::FsError;
use crate::fs::FileSystem;
use crate::name::Name;
use crate::number::{FileType, InodeNo};

/// Most symbolic links that a walk follows, as Linux has it.
const LINKS_FOLLOWED_MAX: u32 = 40;

/// The place that a path leads to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Located {
    /// The directory and the name there; `None` if the path leads to where it begins, or ends in `.`,
    /// `..` or `/`.
    pub place: Option<(InodeNo, Vec<u8>)>,
    /// The file; `None` if there is none of this name.
    pub file: Option<Attr>,
}

/// The names of a path in reverse order. What ends in a slash is a directory, as what ends in `.` is.
fn reversed_parts(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    let end = path.ends_with(b"/").then_some(&b"."[..]);
    let parts = path.split(|&byte| byte == b'/').filter(|part| !part.is_empty());
    end.into_iter().chain(parts.rev())
}

/// Splits a path before its last name. `None` if it ends in no name.
fn split_last(path: &[u8]) -> Option<(&[u8], &[u8])> {
    let start = path.iter().rposition(|&byte| byte == b'/').map_or(0, |slash| slash + 1);
    let (parents, last) = path.split_at(start);
    (!matches!(last, b"" | b"." | b"..")).then_some((parents, last))
}

impl<M: Medium> FileSystem<M> {
    /// The file that `path` leads to, as [`FileSystem::locate`] finds it. Of a path of names alone no
    /// memory is allocated.
    ///
    /// # Errors
    /// As [`FileSystem::locate`]; `NotFound` if there is none.
    pub fn attr_at(&self, from: InodeNo, path: &[u8], follow: bool) -> Result<Attr, FsError> {
        if let Some((parent, name)) = self.plain_place(from, path)? {
            let found = self.lookup(parent, name)?;
            if !follow || found.kind != FileType::Symlink {
                return Ok(found);
            }
        }
        self.locate(from, path, follow)?.file.ok_or(FsError::NotFound)
    }

    /// Opens the file that `path` leads to, as [`FileSystem::open_inode`] does. Follows symbolic links.
    ///
    /// # Errors
    /// As [`FileSystem::attr_at`].
    pub fn open_at(&self, from: InodeNo, path: &[u8]) -> Result<Attr, FsError> {
        if let Some((parent, name)) = self.plain_place(from, path)? {
            let open = |found: Dentry| match found.kind {
                FileType::Symlink => self.attr(found.inode),
                _ => self.open_inode(found.inode),
            };
            let opened = self.lookup_and(parent, name, open)?;
            if opened.kind != FileType::Symlink {
                return Ok(opened);
            }
        }
        self.open_inode(self.attr_at(from, path, true)?.inode)
    }

    /// The directory that `path` leads to, and the name there that it ends in, of a file that may exist
    /// or not. Of a path of names alone no memory is allocated.
    ///
    /// # Errors
    /// As [`FileSystem::locate`]; `InvalidName` if the path ends in no name.
    pub fn place_at<'p>(
        &self,
        from: InodeNo,
        path: &'p [u8],
    ) -> Result<(InodeNo, Name<'p>), FsError> {
        if let Some(place) = self.plain_place(from, path)? {
            return Ok(place);
        }
        let (parents, last) = split_last(path).ok_or(FsError::InvalidName)?;
        Ok((self.attr_at(from, parents, true)?.inode, Name::new(last)?))
    }

    /// The place that a path of names leads to; `None` if `.`, `..` or a symbolic link is on the way, or
    /// the path ends in no name.
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

    /// The place that `path` leads to from the directory `from`, or from the root if it begins with `/`.
    /// Follows symbolic links, up to 40, and one at the end if `follow` says so: then the place is
    /// where that leads. Of a name that does not exist only the directory must.
    ///
    /// # Errors
    /// `NotFound` or `NotDirectory` on the way; `TooManySymlinks`; `InvalidName` or `NameTooLong`;
    /// `Stale`, or a structure cannot be right.
    pub fn locate(&self, from: InodeNo, path: &[u8], follow: bool) -> Result<Located, FsError> {
        let start = if path.starts_with(b"/") { self.root() } else { from };
        let mut at = self.attr(start)?;
        let mut place = None;
        let mut left: Vec<Vec<u8>> = reversed_parts(path).map(<[u8]>::to_vec).collect();
        let mut followed = 0;
        while let Some(part) = left.pop() {
            match &part[..] {
                b"." | b".." if at.kind != FileType::Directory => {
                    return Err(FsError::NotDirectory);
                }
                b"." => place = None,
                b".." => (at, place) = (self.attr(self.parent(at.inode)?)?, None),
                name => match self.lookup(at.inode, Name::new(name)?) {
                    Ok(found)
                        if found.kind == FileType::Symlink && (follow || !left.is_empty()) =>
                    {
                        followed += 1;
                        if followed > LINKS_FOLLOWED_MAX {
                            return Err(FsError::TooManySymlinks);
                        }
                        let target = self.read_link(found.inode)?;
                        left.extend(reversed_parts(&target).map(<[u8]>::to_vec));
                        if target.starts_with(b"/") {
                            (at, place) = (self.attr(self.root())?, None);
                        }
                    }
                    Ok(found) => (place, at) = (Some((at.inode, part)), found),
                    // A directory that is to be made may have a slash behind its name.
                    Err(FsError::NotFound) if left.iter().all(|part| part == b".") => {
                        return Ok(Located { place: Some((at.inode, part)), file: None });
                    }
                    Err(error) => return Err(error),
                },
            }
        }
        Ok(Located { place, file: Some(at) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_name_of_a_path_is_split_off_if_it_ends_in_one() {
        let split = |path: &'static str| split_last(path.as_bytes());
        assert_eq!(split("a"), Some((&b""[..], &b"a"[..])));
        assert_eq!(split("/a//b"), Some((&b"/a//"[..], &b"b"[..])));
        for none in ["", "/", "a/", "a/.", ".."] {
            assert_eq!(split(none), None, "{none}");
        }
    }
}
