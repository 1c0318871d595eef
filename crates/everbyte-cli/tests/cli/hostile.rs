//! A lying server: it forwards requests to a real server and changes the answers.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt, symlink};
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use everbyte_control::{
    Attached, ControlClient, ControlError, ControlServer, FileKind, FileRequest, Handler,
    PathBytes, Request, RequestError, Response,
};

use super::{Place, Running};

type Answer = Result<(Response, Vec<u8>), RequestError>;
type Lie = dyn Fn(&Request, Answer) -> Answer + Send + Sync;

/// Forwards requests, and counts them.
struct Liar {
    real: Mutex<ControlClient>,
    lie: Box<Lie>,
    requests: Arc<AtomicUsize>,
}

impl Handler for Liar {
    fn handle(&self, request: Request) -> Result<Response, RequestError> {
        self.handle_attached(request, Attached::default()).map(|(response, _)| response)
    }

    fn handle_attached(&self, request: Request, attached: Attached) -> Answer {
        self.requests.fetch_add(1, Ordering::Relaxed);
        let mut real = self.real.lock().unwrap();
        let answer = real.call_attached(request.clone(), &attached.bytes, None);
        let answer = answer.map_err(|error| match error {
            ControlError::Refused(refused) => refused,
            error => panic!("{error}"),
        });
        (self.lie)(&request, answer)
    }
}

/// A pool `FOLDER/fake`. Its server lies about the pool of a place.
struct Fake {
    _server: ControlServer,
    _lock: File,
    requests: Arc<AtomicUsize>,
}

impl Fake {
    fn start(
        place: &Place,
        lie: impl Fn(&Request, Answer) -> Answer + Send + Sync + 'static,
    ) -> Self {
        let path = place.folder.path().join("fake");
        let lock = File::create(&path).unwrap();
        lock.lock().unwrap();
        let requests = Arc::<AtomicUsize>::default();
        let real = Mutex::new(ControlClient::connect(&place.pool).unwrap());
        let liar = Liar { real, lie: Box::new(lie), requests: Arc::clone(&requests) };
        let server = ControlServer::start(&path, None, Arc::new(liar)).unwrap();
        Self { _server: server, _lock: lock, requests }
    }

    /// Requests since this was last asked.
    fn requests(&self) -> usize {
        self.requests.swap(0, Ordering::Relaxed)
    }
}

/// A served pool with files `a`, `b` and `d/c`.
fn served() -> (Place, Running, PathBuf) {
    let place = Place::empty();
    place.run("pool create POOL --size 64M").good();
    place.run("volume create POOL files --kind fs --size 32M").good();
    let top = place.folder.path().join("tree");
    fs::create_dir_all(top.join("d")).unwrap();
    for (name, bytes) in [("a", "one"), ("b", "two"), ("d/c", "three")] {
        fs::write(top.join(name), bytes).unwrap();
    }
    symlink("a", top.join("l")).unwrap();
    let server = place.serve("POOL", "");
    place.run("fs put -r FOLDER/tree POOL/files:/").good();
    (place, server, top)
}

/// A lie about the entry `a` of a listing.
fn about_a(change: impl Fn(&mut everbyte_control::FileEntry) + Send + Sync + 'static) -> Box<Lie> {
    Box::new(move |_, answer| {
        let (mut response, bytes) = answer?;
        if let Response::FileEntries { entries, .. } = &mut response {
            entries.iter_mut().filter(|entry| entry.name.0 == b"a").for_each(&change);
        }
        Ok((response, bytes))
    })
}

#[test]
#[expect(clippy::too_many_lines, reason = "one table of lies")]
fn lies_about_files_write_nothing_elsewhere() {
    let (place, server, _) = served();
    let names = ["../../outside/evil", "..", ".", "", "/etc/evil", "x/y", "n\0l"];
    let mut lies: Vec<(String, Box<Lie>)> = names
        .into_iter()
        .map(|name| {
            let lie = about_a(move |entry| entry.name = PathBytes(name.into()));
            (format!("name {name:?}"), lie)
        })
        .collect();
    lies.push(("mode".into(), about_a(|entry| entry.file.permissions = 0o100_4755)));
    lies.push(("size".into(), about_a(|entry| entry.file.size_bytes = u64::MAX)));
    lies.push(("kind".into(), about_a(|entry| entry.file.kind = FileKind::Symlink)));
    lies.push(("target".into(), about_a(|entry| entry.file.target = Some(PathBytes(vec![b'x'])))));
    lies.push(("twice".into(), about_a(|entry| entry.name = PathBytes(b"b".to_vec()))));
    lies.push((
        "endless".into(),
        Box::new(|_, answer| {
            let (mut response, bytes) = answer?;
            if let Response::FileEntries { next, .. } = &mut response {
                *next = Some(0);
            }
            Ok((response, bytes))
        }),
    ));
    lies.push((
        "no end".into(),
        Box::new(|request, answer| {
            let (mut response, bytes) = answer?;
            if let (
                Request::Files { request: FileRequest::List { place, .. }, .. },
                Response::FileEntries { next, entries, .. },
            ) = (request, &mut response)
            {
                *next = Some(place + 1);
                entries.clear();
            }
            Ok((response, bytes))
        }),
    ));
    lies.push((
        "bytes".into(),
        Box::new(|request, answer| match request {
            Request::Files { request: FileRequest::Read { len, .. }, .. } => {
                Ok((Response::FileBytes { len: len + 1 }, vec![0; *len as usize + 1]))
            }
            _ => answer,
        }),
    ));
    lies.push((
        "data".into(),
        Box::new(|request, answer| match request {
            Request::Files { request: FileRequest::Data { offset, .. }, .. } => {
                let ranges = vec![(*offset, *offset + 3)];
                Ok((Response::FileData { ranges, size_bytes: 3, next: Some(*offset) }, vec![]))
            }
            _ => answer,
        }),
    ));
    lies.push((
        "another answer".into(),
        Box::new(|_, answer| answer.map(|_| (Response::FileDone, Vec::new()))),
    ));
    let outside = place.folder.path().join("outside");
    fs::create_dir_all(&outside).unwrap();
    for (what, lie) in lies {
        let fake = Fake::start(&place, lie);
        let into = place.folder.path().join("into");
        fs::create_dir_all(into.join("sub")).unwrap();
        let outcome = place.run("fs get -rp FOLDER/fake/files:/ FOLDER/into/sub");
        assert_eq!(outcome.status, 1, "{what}: {outcome:?}");
        for line in ["fs tree FOLDER/fake/files", "fs ls FOLDER/fake/files:/tree"] {
            let outcome = place.run(line);
            let is_of_bytes = ["bytes", "data"].contains(&what.as_str());
            assert!(outcome.status == 1 || is_of_bytes, "{what}: {line}: {outcome:?}");
        }
        assert_eq!(fs::read_dir(&outside).unwrap().count(), 0, "{what}");
        assert_eq!(fs::read_dir(&into).unwrap().count(), 1, "{what}");
        fs::remove_dir_all(&into).unwrap();
        drop(fake);
    }
    server.stop();
}

#[test]
fn file_rights_need_pool_of_root() {
    let (place, server, top) = served();
    let program = top.join("a");
    fs::set_permissions(&program, std::os::unix::fs::PermissionsExt::from_mode(0o4755)).unwrap();
    place.run("fs put -p FOLDER/tree/a POOL/files").good();
    // Only this user has access to the real pool; the fake one reports the same.
    let is_root = rustix::process::geteuid().is_root();
    let outcome = place.run("fs get -p POOL/files:a FOLDER/own");
    let mode = |name: &str| fs::metadata(place.folder.path().join(name)).unwrap().mode() & 0o7777;
    assert_eq!(mode("own"), if is_root { 0o4755 } else { 0o755 }, "{outcome:?}");
    fs::set_permissions(&place.pool, std::os::unix::fs::PermissionsExt::from_mode(0o666)).unwrap();
    let outcome = place.run("fs get -p POOL/files:a FOLDER/of-all");
    assert_eq!(mode("of-all"), 0o755);
    assert_eq!(outcome.status, i32::from(is_root), "{outcome:?}");
    server.stop();
}

#[test]
fn refused_file_stops_no_other() {
    let (place, server, _) = served();
    let refused = Arc::new(Mutex::new(None));
    let fake = Fake::start(&place, move |request, answer| {
        if let Ok((Response::FileEntries { entries, .. }, _)) = &answer {
            let found = entries.iter().find(|entry| entry.name.0 == b"a");
            found.inspect(|found| *refused.lock().unwrap() = Some(found.file.id()));
        }
        match request {
            Request::Files { request: FileRequest::Data { file, .. }, .. }
                if Some(*file) == *refused.lock().unwrap() =>
            {
                Err(RequestError::new("map entry at 0x1000 is corrupt: its check bits are wrong"))
            }
            _ => answer,
        }
    });
    let outcome = place.run("fs get -r FOLDER/fake/files:/tree FOLDER/back");
    assert_eq!(outcome.status, 1);
    for words in ["files:/tree/a: left out: map entry", "left out: 1\n  files:/tree/a\n"] {
        assert!(outcome.err.contains(words), "{}", outcome.err);
    }
    let back = place.folder.path().join("back");
    assert!(!back.join("a").exists());
    assert_eq!(fs::read(back.join("b")).unwrap(), b"two");
    assert_eq!(fs::read(back.join("d/c")).unwrap(), b"three");
    drop(fake);
    server.stop();
}

#[test]
fn holes_take_a_request_or_two_in_both_directions() {
    let (place, server, _) = served();
    let fake = Fake::start(&place, |_, answer| answer);
    let hole = place.folder.path().join("hole");
    // A volume of 32 MiB, files of 16 GiB, 16 TiB and 4 PiB.
    for len in [16_u64 << 30, 16 << 40, (4 << 50) - 4096] {
        let file = File::create(&hole).unwrap();
        if file.set_len(len).is_err() {
            continue;
        }
        fake.requests();
        place.run("fs put FOLDER/hole FOLDER/fake/files").good();
        assert!(fake.requests() <= 10, "put {len}");
        place.run("fs get FOLDER/fake/files:hole FOLDER/back").good();
        assert!(fake.requests() <= 5, "get {len}");
        let back = fs::metadata(place.folder.path().join("back")).unwrap();
        assert_eq!((back.len(), back.blocks()), (len, 0));
        // Some bytes in the middle and at the end.
        file.write_all_at(b"middle", len / 2).unwrap();
        file.write_all_at(b"end", len - 3).unwrap();
        place.run("fs put FOLDER/hole FOLDER/fake/files").good();
        assert!(fake.requests() <= 14, "put {len}");
        let out = File::create(place.folder.path().join("cat")).unwrap();
        let arguments = place.arguments("fs cat FOLDER/fake/files:hole");
        let shown = super::Outcome::with_stdout(super::everbyte().args(arguments), out.into());
        assert_eq!(shown.status, 0, "{shown:?}");
        assert!(fake.requests() <= 6, "cat {len}");
        place.run("fs get FOLDER/fake/files:hole FOLDER/back").good();
        for name in ["back", "cat"] {
            let back = File::open(place.folder.path().join(name)).unwrap();
            let metadata = back.metadata().unwrap();
            assert!(metadata.len() == len && metadata.blocks() <= 64, "{name} {metadata:?}");
            let mut bytes = [1; 7];
            back.read_exact_at(&mut bytes, len / 2).unwrap();
            assert_eq!(&bytes, b"middle\0");
            back.read_exact_at(&mut bytes, len - 7).unwrap();
            assert_eq!(&bytes, b"\0\0\0\0end");
        }
        fs::remove_file(place.folder.path().join("back")).unwrap();
    }
    drop(fake);
    server.stop();
}

#[test]
fn long_refusal_is_truncated() {
    let (place, server, _) = served();
    // A refusal of any length is shown in part.
    let fake = Fake::start(&place, |_, _| Err(RequestError::new("x".repeat(1 << 20))));
    let outcome = place.run("volume list FOLDER/fake");
    assert!(outcome.status == 1 && outcome.err.len() < 100 << 10, "{}", outcome.err.len());
    drop(fake);
    server.stop();
}
