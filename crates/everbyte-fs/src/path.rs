//! Paths: walked name by name, without a kernel that does so.

use everbyte_media::Medium;

use crate::attr::Attr;
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

impl<M: Medium> FileSystem<M> {
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
