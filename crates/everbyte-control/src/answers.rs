//! Checks of a server's answers before a client uses them.
//!
//! A pool's owner can run any program as its server. Names, numbers, cursors and link targets of an answer
//! are therefore foreign input. Invariants: a name of an accepted answer is one component of a path; a
//! listing and a scrub go forward; no answer has more than was asked for.

use std::collections::HashSet;
use std::time::Duration;

use crate::files::{FileEntry, FileKind, FileRequest, FileStatus, PathBytes};
use crate::message::{Request, Response, VolumeStatus};

/// Longest answer about files, in bytes.
const FILES_BYTES_MAX: u64 = 16 << 20;
/// Longest accepted answer, in bytes. The longest list of volumes or problems is far shorter.
const ANSWER_BYTES_MAX: u64 = 64 << 20;
/// Most entries of a directory in one answer.
const ENTRIES_MAX: usize = 16 << 10;
/// Most ranges of a file in one answer.
const RANGES_MAX: usize = 16 << 10;
/// Longest target of a symbolic link, in bytes.
const TARGET_BYTES_MAX: usize = 4095;
/// Largest file of the system, in bytes.
const FILE_BYTES_MAX: u64 = i64::MAX.cast_unsigned();
/// Longest text of a refusal, in bytes.
const REASON_BYTES_MAX: usize = 64 << 10;
const PERMISSIONS: u32 = 0o7777;
const VOLUME_NAME_BYTES_MAX: usize = 255;

/// Longest time for an answer to a read-only request.
const LOOK_TIME_MAX: Duration = Duration::from_secs(60);
/// Longest time for an answer to a change of a file.
const FILE_CHANGE_TIME_MAX: Duration = Duration::from_secs(10 * 60);
/// Longest time for an answer to a request that reads or writes much.
const WORK_TIME_MAX: Duration = Duration::from_secs(60 * 60);
/// Longest time for an answer to a request about a whole pool or volume.
const WHOLE_TIME_MAX: Duration = Duration::from_secs(24 * 60 * 60);

/// Longest line of the answer, in bytes.
pub(crate) fn bytes_max(request: &Request) -> u64 {
    if matches!(request, Request::Files { .. }) { FILES_BYTES_MAX } else { ANSWER_BYTES_MAX }
}

/// Longest time from the request to the end of the answer, even from a live server; `None` if the
/// answer waits for a user's action.
pub(crate) fn time_max(request: &Request) -> Option<Duration> {
    Some(match request {
        // The mount ends at any time in the future, or never.
        Request::MountWait { .. } => return None,
        Request::Info
        | Request::VolumeList
        | Request::ClientList
        | Request::ClientDisconnect { .. }
        | Request::Stats
        | Request::Metrics
        | Request::Exports
        | Request::Mount(_)
        | Request::Lend { .. } => LOOK_TIME_MAX,
        Request::Files { request: FileRequest::Sync, .. }
        | Request::Scrub { .. }
        | Request::CacheDrain { .. } => WORK_TIME_MAX,
        Request::Files { request, .. } if request.is_change() => FILE_CHANGE_TIME_MAX,
        Request::Files { .. } => LOOK_TIME_MAX,
        // A new kind of request gets the longest time: a short one could end a useful request.
        _ => WHOLE_TIME_MAX,
    })
}

/// The text of a refusal, cut to a readable length.
pub(crate) fn shortened(mut text: String) -> String {
    if text.len() > REASON_BYTES_MAX {
        // A foreign text can have a character across the limit, and `truncate` would panic there.
        text.truncate(text.floor_char_boundary(REASON_BYTES_MAX));
        text.push_str(" ...");
    }
    text
}

/// Checks an answer by its request.
///
/// # Errors
/// The mistake in words.
pub(crate) fn check(request: &Request, response: &Response) -> Result<(), String> {
    match (request, response) {
        (Request::Files { request, .. }, _) => check_files(request, response),
        (Request::Scrub { from, .. }, Response::Scrub(part)) => {
            // A client repeats the request at `next`, so a server that does not advance would hold
            // it forever.
            fail_if(part.next.is_some_and(|next| next <= *from), || {
                format!("the scrub continues at byte {:?} after byte {from}", part.next)
            })
        }
        (Request::ClientDisconnect { id: asked }, Response::Disconnected { id, .. }) => {
            // An answer to an earlier request would be reported as the result of this one.
            fail_if(asked != id, || format!("it is about client {id}, not {asked}"))
        }
        (
            Request::VolumeDelete { name: asked, .. } | Request::VolumeDetach { name: asked, .. },
            Response::Deleted(deleted),
        ) => fail_if(*asked != deleted.name, || "it is about another volume".to_owned()),
        // Commands print volume names and join them to paths, so each is checked in every answer.
        (_, Response::Pool(pool)) => pool.volumes.iter().try_for_each(check_volume),
        (_, Response::Volumes(volumes)) => volumes.iter().try_for_each(check_volume),
        (_, Response::Volume(volume)) => check_volume(volume),
        // An unexpected kind of answer is an error for the caller, who knows its meaning.
        _ => Ok(()),
    }
}

fn fail_if(is_wrong: bool, what: impl FnOnce() -> String) -> Result<(), String> {
    if is_wrong { Err(what()) } else { Ok(()) }
}

fn check_volume(volume: &VolumeStatus) -> Result<(), String> {
    let name = &volume.name;
    let is_name = !name.is_empty()
        && name.len() <= VOLUME_NAME_BYTES_MAX
        && !name.contains(|c: char| c == '/' || c.is_control());
    fail_if(!is_name, || format!("no volume can have the name {name:?}"))
}

fn check_files(request: &FileRequest, response: &Response) -> Result<(), String> {
    match (request, response) {
        (FileRequest::Find { .. }, Response::FileFound { at, file }) => {
            if let Some(at) = at {
                check_name(&at.name)?;
            }
            file.as_deref().map_or(Ok(()), check_status)
        }
        (FileRequest::Make { new, .. }, Response::FileFound { file: Some(file), .. }) => {
            check_status(file)?;
            // A copy fills the new file next. Another type would send the bytes to a device or a
            // directory.
            fail_if(file.kind != new.kind, || "the new file has another type".to_owned())
        }
        (FileRequest::Set { file: asked, .. }, Response::FileFound { file: Some(file), .. }) => {
            check_status(file)?;
            // A reused inode number has another generation, so this detects a file that replaced
            // the asked one.
            fail_if(file.id() != *asked, || "it is about another file".to_owned())
        }
        (FileRequest::List { place, .. }, Response::FileEntries { .. }) => {
            check_entries(*place, response)
        }
        (FileRequest::Data { offset, .. }, Response::FileData { .. }) => {
            check_data(*offset, response)
        }
        (FileRequest::Read { len: asked, .. }, Response::FileBytes { len }) => {
            // Fewer bytes mark the end of the file. More would overrun the caller's position.
            fail_if(len > asked, || format!("{len} bytes are more than the {asked} asked for"))
        }
        (
            FileRequest::Write { .. }
            | FileRequest::Rename { .. }
            | FileRequest::Move { .. }
            | FileRequest::Remove { .. }
            | FileRequest::RemoveDirectory { .. }
            | FileRequest::Sync,
            Response::FileDone,
        )
        | (FileRequest::Drop { .. }, Response::FileDropped(_)) => Ok(()),
        (FileRequest::Space, Response::FileSpace(space)) => {
            fail_if(space.free_bytes > space.size_bytes, || "more is free than there is".to_owned())
        }
        // Strict, in contrast to the other requests: a copy uses these answers without a further
        // look.
        _ => Err("it answers another request".to_owned()),
    }
}

fn check_name(name: &PathBytes) -> Result<(), String> {
    fail_if(!name.is_name(), || format!("no file can have the name \"{name}\""))
}

fn check_status(file: &FileStatus) -> Result<(), String> {
    let FileStatus { permissions, size_bytes, .. } = file;
    fail_if(permissions & !PERMISSIONS != 0, || format!("no permissions are {permissions:o}"))?;
    fail_if(*size_bytes > FILE_BYTES_MAX, || format!("no file has {size_bytes} bytes"))?;
    // A client makes links with this target, and the system's call ends a target at its first NUL.
    let is_right = match (&file.target, file.kind) {
        (Some(target), FileKind::Symlink) => {
            (1..=TARGET_BYTES_MAX).contains(&target.0.len()) && !target.0.contains(&0)
        }
        (target, kind) => target.is_none() && kind != FileKind::Symlink,
    };
    fail_if(!is_right, || "a symbolic link alone has a target, of 1 to 4095 bytes".to_owned())
}

fn check_entries(place: u64, response: &Response) -> Result<(), String> {
    let Response::FileEntries { entries, unreadable, damage, next } = response else {
        return Ok(());
    };
    let count = entries.len() + unreadable.len() + damage.len();
    // All three lists count: each of them costs the client memory.
    fail_if(count > ENTRIES_MAX, || format!("{count} entries are too many for one message"))?;
    fail_if(next.is_some_and(|next| next <= place), || {
        format!("the listing continues at {next:?} after {place}")
    })?;
    // A cursor can advance 2^64 times, so an advancing cursor without entries is endless in
    // practice.
    fail_if(next.is_some() && count == 0, || "the listing has no entries and goes on".to_owned())?;
    let mut names = HashSet::new();
    for FileEntry { name, file } in entries {
        check_name(name)?;
        check_status(file)?;
        // A concurrent rename can list a name twice with different files. The same pair twice is a
        // lie.
        fail_if(!names.insert((name, file.id())), || format!("\"{name}\" is listed twice"))?;
    }
    unreadable.iter().try_for_each(|entry| check_name(&entry.name))
}

fn check_data(offset: u64, response: &Response) -> Result<(), String> {
    let Response::FileData { ranges, size_bytes, next } = response else { return Ok(()) };
    fail_if(*size_bytes > FILE_BYTES_MAX, || format!("no file has {size_bytes} bytes"))?;
    fail_if(ranges.len() > RANGES_MAX, || "it has too many ranges at once".to_owned())?;
    // Ascending and disjoint ranges bound a copy's work by the size of the file.
    let mut at = offset;
    for &(start, end) in ranges {
        fail_if(start < at || end <= start || end > *size_bytes, || {
            format!("no data of a file of {size_bytes} bytes are from {start} to {end} after {at}")
        })?;
        at = end;
    }
    fail_if(next.is_some_and(|next| ranges.is_empty() || next < at || next > *size_bytes), || {
        format!("the data of the file go on at {next:?} after {at}")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::{FileId, FilePlace, UnreadableEntry};

    fn status(kind: FileKind) -> FileStatus {
        let target = (kind == FileKind::Symlink).then(|| PathBytes(b"t".to_vec()));
        let json = serde_json::json!({
            "inode": 1, "generation": 1, "kind": kind, "permissions": 0o644, "links": 1, "uid": 0,
            "gid": 0, "size_bytes": 1, "used_bytes": 0, "device": 0, "accessed_ns": 0,
            "modified_ns": 0, "changed_ns": 0, "created_ns": 0, "target": target,
        });
        serde_json::from_value(json).unwrap()
    }

    fn files(request: FileRequest) -> Request {
        Request::Files { volume: "files".into(), request }
    }

    fn list() -> Request {
        files(FileRequest::List { directory: FileId { inode: 1, generation: 1 }, place: 5 })
    }

    fn entries(entries: Vec<FileEntry>, next: Option<u64>) -> Response {
        Response::FileEntries { entries, unreadable: Vec::new(), damage: Vec::new(), next }
    }

    fn entry(name: &[u8]) -> FileEntry {
        FileEntry { name: PathBytes(name.to_vec()), file: status(FileKind::Regular) }
    }

    #[test]
    fn escaping_names_are_refused() {
        let long = vec![b'x'; 256];
        for name in [&b""[..], b".", b"..", b"a/b", b"/", b"../../x", b"a\0", &long] {
            assert!(check(&list(), &entries(vec![entry(name)], None)).is_err(), "{name:?}");
            let unreadable =
                vec![UnreadableEntry { name: PathBytes(name.to_vec()), reason: String::new() }];
            let response = Response::FileEntries {
                entries: Vec::new(),
                unreadable,
                damage: Vec::new(),
                next: None,
            };
            assert!(check(&list(), &response).is_err(), "{name:?}");
            let directory = FileId { inode: 1, generation: 1 };
            let at = Some(FilePlace { directory, name: PathBytes(name.to_vec()) });
            let find = FileRequest::Find { from: None, path: PathBytes::default(), follow: true };
            let found = Response::FileFound { at, file: None };
            assert!(check(&files(find), &found).is_err(), "{name:?}");
        }
        assert!(check(&list(), &entries(vec![entry(b"..a"), entry(b"b")], Some(6))).is_ok());
    }

    #[test]
    fn listing_that_stays_or_repeats_is_refused() {
        for next in [Some(5), Some(4), Some(0)] {
            assert!(check(&list(), &entries(vec![entry(b"a")], next)).is_err(), "{next:?}");
        }
        assert!(check(&list(), &entries(Vec::new(), Some(9))).is_err());
        assert!(check(&list(), &entries(vec![entry(b"a"), entry(b"a")], None)).is_err());
        assert!(check(&list(), &entries(vec![entry(b"a"); ENTRIES_MAX + 1], None)).is_err());
        assert!(check(&list(), &Response::FileDone).is_err());
    }

    #[test]
    fn status_that_no_file_has_is_refused() {
        let changes: [fn(&mut FileStatus); 7] = [
            |file| file.permissions = 0o104_755,
            |file| file.size_bytes = u64::MAX,
            |file| file.target = Some(PathBytes(b"t".to_vec())),
            |file| file.kind = FileKind::Symlink,
            |file| (file.kind, file.target) = (FileKind::Symlink, Some(PathBytes::default())),
            |file| (file.kind, file.target) = (FileKind::Symlink, Some(PathBytes(vec![0]))),
            |file| (file.kind, file.target) = (FileKind::Symlink, Some(PathBytes(vec![1; 4096]))),
        ];
        for (number, change) in changes.into_iter().enumerate() {
            let mut wrong = entry(b"a");
            change(&mut wrong.file);
            assert!(check(&list(), &entries(vec![wrong], None)).is_err(), "{number}");
        }
        let link = FileEntry { file: status(FileKind::Symlink), ..entry(b"a") };
        assert!(check(&list(), &entries(vec![link], None)).is_ok());
    }

    #[test]
    fn data_ranges_ascend_within_file() {
        let request =
            files(FileRequest::Data { file: FileId { inode: 1, generation: 1 }, offset: 10 });
        let answer = |ranges: &[(u64, u64)], next| {
            let response = Response::FileData { ranges: ranges.to_vec(), size_bytes: 100, next };
            check(&request, &response)
        };
        assert!(answer(&[(10, 20), (20, 100)], None).is_ok());
        assert!(answer(&[], None).is_ok());
        assert!(answer(&[(10, 20)], Some(20)).is_ok());
        for (ranges, next) in [
            (&[(9, 20)][..], None),
            (&[(20, 20)], None),
            (&[(20, 101)], None),
            (&[(20, 30), (25, 40)], None),
            (&[], Some(50)),
            (&[(10, 20)], Some(19)),
            (&[(10, 20)], Some(101)),
        ] {
            assert!(answer(ranges, next).is_err(), "{ranges:?} {next:?}");
        }
    }

    #[test]
    fn answer_exceeds_no_request() {
        let file = FileId { inode: 1, generation: 1 };
        let read = files(FileRequest::Read { file, offset: 0, len: 10 });
        assert!(check(&read, &Response::FileBytes { len: 10 }).is_ok());
        assert!(check(&read, &Response::FileBytes { len: 11 }).is_err());
        let scrub = Request::Scrub { volume: None, uid: None, from: 7 };
        let part = |next| Response::Scrub(crate::ScrubPart { next, ..Default::default() });
        assert!(check(&scrub, &part(Some(7))).is_err() && check(&scrub, &part(Some(8))).is_ok());
        let asked = Request::VolumeDelete { name: "a".into(), force: false };
        let deleted = crate::DeletedStatus { name: "b".into(), ..Default::default() };
        assert!(check(&asked, &Response::Deleted(deleted)).is_err());
    }
}
