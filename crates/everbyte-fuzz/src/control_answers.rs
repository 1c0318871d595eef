//! The client of the control socket against answers of a hostile server.
//!
//! A story is a request and a sound answer to it, with some changed fields. Oracle: an accepted
//! answer was sent, and keeps the rules that users rely on. The rules are written here again, in
//! plain words, and share no code with the client's.

use std::collections::HashSet;
use std::path::PathBuf;

use arbitrary::Arbitrary;
use everbyte_control::{
    ControlClient, FileEntry, FileId, FileKind, FilePlace, FileRequest, FileStatus, NewFile,
    PROTOCOL_VERSION, PathBytes, Request, Response,
};
use serde_json::{Value, json};

use crate::control::says;
use crate::socket::{SAID_MAX, peer_saying};

/// Bytes of a read.
const READ_LEN: u32 = 16;
const PLACE: u64 = 7;
const OFFSET: u64 = 1000;

/// A request, and a changed answer.
#[derive(Debug, Arbitrary)]
struct Story {
    request: u8,
    changes: Vec<Change>,
    /// Bytes behind the answer's line.
    attached: u8,
    /// Instead of the answer.
    raw: Option<Vec<u8>>,
}

/// A change of one field, by its number in the order of the text.
#[derive(Debug, Arbitrary)]
struct Change {
    field: u8,
    lie: Lie,
}

#[derive(Debug, Arbitrary)]
enum Lie {
    Number(u64),
    Near(i8),
    Negative(i64),
    Text(String),
    Name(Name),
    Bytes(Vec<u8>),
    Null,
    Empty,
    Twice,
    Missing,
}

/// Names that lead elsewhere, or nearly do.
#[derive(Debug, Arbitrary)]
enum Name {
    Above,
    Here,
    Outside,
    Absolute,
    Long,
    Zero,
    Dots,
}

impl Name {
    fn text(&self) -> String {
        match self {
            Self::Above => "..".into(),
            Self::Here => ".".into(),
            Self::Outside => "../../outside/evil".into(),
            Self::Absolute => "/etc/passwd".into(),
            Self::Long => "x".repeat(256),
            Self::Zero => "a\0b".into(),
            Self::Dots => "...".into(),
        }
    }
}

/// Lets a client send a request, and a server the answer encoded by `bytes`.
///
/// # Panics
/// If a promise is broken.
pub fn control_answers(bytes: &[u8]) {
    let Some(story) = crate::story::<Story>(bytes) else { return };
    let request = request(story.request);
    let mut answer = json!({ "version": PROTOCOL_VERSION, "response": answer(story.request) });
    for change in story.changes.iter().take(8) {
        make(&mut answer, usize::from(change.field), &change.lie);
    }
    let mut said = serde_json::to_vec(&answer).unwrap();
    // Also for raw bytes: the JSON reader of the client is part of the target.
    if let Some(raw) = &story.raw {
        said.clone_from(raw);
    }
    said.push(b'\n');
    // More or fewer bytes than the answer announces.
    said.extend(vec![b'x'; usize::from(story.attached)]);
    let (near, _far) = peer_saying(&said[..said.len().min(SAID_MAX)]);
    let mut client = ControlClient::over(near, PathBuf::from("pool.sock"));
    match client.call_attached(request.clone(), &[], None) {
        Ok((response, attached)) => {
            // A raw answer is known only to the client's reader, so it is judged by the rules
            // alone.
            if story.raw.is_none() {
                let understood = serde_json::to_value(&response).unwrap();
                assert!(says(&answer["response"], &understood), "{answer} became {understood}");
            }
            check(&request, &response, &attached);
        }
        Err(error) => drop(error.to_string()),
    }
}

fn file() -> FileId {
    FileId { inode: 2, generation: 3 }
}

fn place() -> FilePlace {
    FilePlace { directory: file(), name: PathBytes(b"new".to_vec()) }
}

fn request(number: u8) -> Request {
    let request = match number % 12 {
        0 | 1 => FileRequest::List { directory: file(), place: PLACE },
        2 => FileRequest::Find { from: None, path: PathBytes(b"a/b".to_vec()), follow: true },
        3 => FileRequest::Data { file: file(), offset: OFFSET },
        4 => FileRequest::Read { file: file(), offset: 0, len: READ_LEN },
        5 => {
            let (kind, permissions) = (FileKind::Regular, 0o600);
            let new = NewFile { kind, permissions, uid: 0, gid: 0, target: None };
            FileRequest::Make { at: place(), new }
        }
        6 => FileRequest::Sync,
        7 => return Request::VolumeList,
        8 => return Request::Scrub { volume: None, uid: None, from: PLACE },
        9 => return Request::VolumeDelete { name: "v".to_owned(), force: false },
        10 => return Request::ClientDisconnect { id: PLACE },
        _ => return Request::Exports,
    };
    Request::Files { volume: "v".to_owned(), request }
}

/// The status of a file as JSON.
fn status(kind: &str, target: Option<&str>) -> Value {
    let mut status = json!({
        "inode": 2, "generation": 3, "kind": kind, "permissions": 0o644, "links": 1, "uid": 0,
        "gid": 0, "size_bytes": 5, "used_bytes": 4096, "device": 0, "accessed_ns": 1,
        "modified_ns": 2, "changed_ns": 3, "created_ns": 4,
    });
    if let Some(target) = target {
        status["target"] = json!(target);
    }
    status
}

fn named(name: &str, mut status: Value) -> Value {
    status["name"] = json!(name);
    status
}

/// A sound answer to the request with this number.
fn answer(number: u8) -> Value {
    let found = || json!({ "at": place(), "file": status("regular", None) });
    match number % 12 {
        0 | 1 => {
            let entries = [
                named("a", status("regular", None)),
                named("b", status("symlink", Some("../c"))),
                named("d", status("directory", None)),
            ];
            let unreadable = json!([{ "name": "u", "reason": "it is damaged" }]);
            json!({ "answer": "file-entries", "with": {
                "entries": entries, "unreadable": unreadable, "damage": ["a bucket"], "next": 9,
            }})
        }
        2 | 5 => json!({ "answer": "file-found", "with": found() }),
        3 => json!({ "answer": "file-data", "with": {
            "ranges": [[1000, 1010], [2000, 4096]], "size_bytes": 5000, "next": 4096,
        }}),
        4 => json!({ "answer": "file-bytes", "with": { "len": 5 } }),
        6 => json!({ "answer": "file-done" }),
        7 => json!({ "answer": "volumes", "with": [{
            "name": "v", "kind": "block", "uid": 1, "size_bytes": 1, "used_bytes": 1, "log_bytes": 1,
            "lanes": 1, "delta": "d", "threshold_lines": 1, "epoch": 1,
            "read_only": null, "clients": 0,
        }]}),
        8 => json!({ "answer": "scrub", "with": {
            "read_bytes": 1, "verified_blocks": 1, "next": 8, "problems": [],
        }}),
        9 => json!({ "answer": "deleted", "with": { "name": "v" } }),
        10 => json!({ "answer": "disconnected", "with": { "id": PLACE, "stuck": false } }),
        _ => json!({ "answer": "serving", "with": everbyte_control::ServingStatus::default() }),
    }
}

/// Pointers (RFC 6901) to all fields and elements of a value.
fn fields(value: &Value, at: &str, found: &mut Vec<String>) {
    let inner: Vec<(String, &Value)> = match value {
        Value::Object(inner) => inner.iter().map(|(name, value)| (name.clone(), value)).collect(),
        Value::Array(inner) => (0..).map(|at: usize| at.to_string()).zip(inner).collect(),
        _ => Vec::new(),
    };
    for (name, value) in inner {
        let at = format!("{at}/{name}");
        fields(value, &at, found);
        found.push(at);
    }
}

/// Changes the field with this number.
fn make(answer: &mut Value, number: usize, lie: &Lie) {
    let mut found = Vec::new();
    fields(answer, "", &mut found);
    if found.is_empty() {
        return;
    }
    let pointer = &found[number % found.len()];
    let (above, name) = pointer.rsplit_once('/').expect("a pointer has a name");
    match (lie, answer.pointer_mut(above).expect("it was found")) {
        (Lie::Missing, Value::Object(above)) => drop(above.remove(name)),
        (Lie::Twice, Value::Array(above)) => above.push(above[0].clone()),
        (lie, above) => {
            let value = above.pointer_mut(&format!("/{name}")).expect("it was found");
            *value = lied(value, lie);
        }
    }
}

fn lied(value: &Value, lie: &Lie) -> Value {
    match lie {
        Lie::Number(number) => json!(number),
        Lie::Near(by) => {
            json!(value.as_u64().map(|number| number.wrapping_add_signed(i64::from(*by))))
        }
        Lie::Negative(number) => json!(number),
        Lie::Text(text) => json!(text),
        Lie::Name(name) => json!(name.text()),
        Lie::Bytes(bytes) => {
            let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            json!({ "hex": hex })
        }
        // A list has no members to remove, so its element becomes null.
        Lie::Null | Lie::Missing => Value::Null,
        Lie::Empty | Lie::Twice => match value {
            Value::Array(_) => json!([]),
            Value::Object(_) => json!({}),
            _ => json!(""),
        },
    }
}

/// Checks an accepted answer.
fn check(request: &Request, response: &Response, attached: &[u8]) {
    match (request, response) {
        (
            Request::Files { request: FileRequest::List { place, .. }, .. },
            Response::FileEntries { entries, unreadable, next, .. },
        ) => {
            // A user who walks a tree by these names would copy a file twice.
            let mut seen = HashSet::new();
            for FileEntry { name, file } in entries {
                check_name(name);
                check_file(file);
                assert!(seen.insert((name.clone(), file.inode, file.generation)), "{name} twice");
            }
            unreadable.iter().for_each(|entry| check_name(&entry.name));
            // A caller continues at `next`. It must not come back to a former place.
            assert!(next.is_none_or(|next| next > *place), "{next:?}");
        }
        (Request::Files { request, .. }, Response::FileFound { at, file }) => {
            assert!(
                matches!(request, FileRequest::Find { .. } | FileRequest::Make { .. }),
                "{request:?}"
            );
            if matches!(request, FileRequest::Find { .. }) {
                at.iter().for_each(|at| check_name(&at.name));
            }
            file.iter().for_each(|file| check_file(file));
        }
        (
            Request::Files { request: FileRequest::Data { offset, .. }, .. },
            Response::FileData { ranges, size_bytes, next },
        ) => {
            let mut at = *offset;
            for (start, end) in ranges {
                assert!(at <= *start && start < end && end <= size_bytes, "{ranges:?}");
                at = *end;
            }
            // The next question is about later bytes.
            assert!(next.is_none_or(|next| next >= at && next > *offset), "{next:?}");
        }
        (
            Request::Files { request: FileRequest::Read { len: asked, .. }, .. },
            Response::FileBytes { len },
        ) => assert!(*len as usize == attached.len() && len <= asked),
        (Request::Files { request: FileRequest::Sync, .. }, Response::FileDone) => {}
        (Request::Files { .. }, other) => panic!("{other:?} answers another request"),
        (Request::VolumeList, Response::Volumes(volumes)) => {
            for volume in volumes {
                // Names are shown on terminals and become parts of paths.
                assert!(!volume.name.is_empty() && !volume.name.contains(['/', '\0', '\x1b']));
            }
        }
        (Request::Scrub { from, .. }, Response::Scrub(part)) => {
            assert!(part.next.is_none_or(|next| next > *from));
        }
        (Request::VolumeDelete { name, .. }, Response::Deleted(deleted)) => {
            assert_eq!(name, &deleted.name);
        }
        // The caller sees that these are other answers.
        _ => {}
    }
}

fn check_name(PathBytes(name): &PathBytes) {
    assert!(!name.is_empty() && name.len() < 256, "{name:?}");
    assert!(name != b"." && name != b"..", "{name:?}");
    assert!(!name.contains(&b'/') && !name.contains(&0), "{name:?}");
}

fn check_file(file: &FileStatus) {
    assert!(file.permissions < 0o10_000, "{:o}", file.permissions);
    assert!(file.size_bytes < 1 << 63, "{}", file.size_bytes);
    let target = file.target.as_ref().map(|PathBytes(target)| target);
    assert_eq!(target.is_some(), file.kind == FileKind::Symlink);
    assert!(target.is_none_or(|target| !target.is_empty() && !target.contains(&0)));
}
