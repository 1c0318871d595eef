//! Tests of the control socket, hostile clients included.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use super::*;

/// Grows to any size and refuses all other requests.
struct Grower;

impl Handler for Grower {
    fn handle(&self, request: Request) -> Result<Response, RequestError> {
        match request {
            Request::Grow { size_bytes } => Ok(Response::Grown { size_bytes }),
            Request::Check => panic!("a request that kills its thread"),
            other => Err(RequestError::new(format!("not {other:?}"))),
        }
    }
}

fn grow(client: &mut ControlClient, size_bytes: u64) {
    let response = client.call(Request::Grow { size_bytes }).unwrap();
    assert_eq!(response, Response::Grown { size_bytes });
}

#[test]
fn requests_are_answered_or_refused_for_the_owner() {
    let folder = tempfile::tempdir().unwrap();
    let pool = folder.path().join("pool");
    std::fs::write(socket_path(&pool), "precious").unwrap();
    assert!(ControlServer::start(&pool, None, Arc::new(Grower)).is_err(), "a file is in the way");
    std::fs::remove_file(socket_path(&pool)).unwrap();

    let server = ControlServer::start(&pool, None, Arc::new(Grower)).unwrap();
    let mode = std::fs::metadata(server.path()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let mut client = ControlClient::connect(&pool).unwrap();
    grow(&mut client, 5);
    let error = client.call(Request::Info).unwrap_err();
    assert_eq!(error.to_string(), "not Info");
    grow(&mut client, 6);
    drop(server);
    assert!(!socket_path(&pool).exists());
    let error = ControlClient::connect(&pool).unwrap_err();
    assert!(matches!(error, ControlError::Unreachable { .. }), "{error}");
}

#[test]
fn silent_connections_delay_no_request() {
    let folder = tempfile::tempdir().unwrap();
    let pool = folder.path().join("pool");
    let _server = ControlServer::start(&pool, None, Arc::new(Grower)).unwrap();
    let mut before = ControlClient::connect(&pool).unwrap();
    grow(&mut before, 1);
    let since = std::time::Instant::now();
    let crowd: Vec<_> =
        (0..300).map(|_| UnixStream::connect(socket_path(&pool)).unwrap()).collect();
    for size in 2..10 {
        grow(&mut ControlClient::connect(&pool).unwrap(), size);
    }
    grow(&mut before, 10);
    assert!(since.elapsed() < Duration::from_secs(5), "{:?}", since.elapsed());
    drop(crowd);
}

#[test]
fn foreign_file_at_socket_path_stays() {
    let folder = tempfile::tempdir().unwrap();
    let pool = folder.path().join("pool");
    let path = socket_path(&pool);
    let owner = std::fs::metadata(folder.path()).unwrap().uid();
    type Make = fn(&std::path::Path);
    let kinds: [(&str, Make); 4] = [
        ("regular file", |path| std::fs::write(path, "precious").unwrap()),
        ("directory", |path| std::fs::create_dir(path).unwrap()),
        ("symbolic link", |path| std::os::unix::fs::symlink("/nowhere", path).unwrap()),
        ("named pipe", |path| {
            let (kind, mode) = (rustix::fs::FileType::Fifo, rustix::fs::Mode::RUSR);
            rustix::fs::mknodat(rustix::fs::CWD, path, kind, mode, 0).unwrap();
        }),
    ];
    for (kind, make) in kinds {
        make(&path);
        let before = identity_of(&path);
        let error = ControlServer::start(&pool, None, Arc::new(Grower)).err().unwrap().to_string();
        assert!(error.contains(&format!("is a {kind} of user {owner}")), "{error}");
        assert_eq!(identity_of(&path), before, "{kind}");
        crate::remove_left_socket(&path, None).unwrap();
        assert_eq!(identity_of(&path), before, "{kind}");
        if kind == "directory" {
            std::fs::remove_dir(&path).unwrap();
        } else {
            std::fs::remove_file(&path).unwrap();
        }
    }
    // A socket that another user listens on.
    let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
    if std::os::unix::fs::chown(&path, Some(65_534), None).is_ok() {
        let error = ControlServer::start(&pool, None, Arc::new(Grower)).err().unwrap().to_string();
        assert!(error.contains("is a socket of user 65534"), "{error}");
        assert!(path.exists());
        let error = ControlClient::connect(&pool).unwrap_err();
        assert!(matches!(error, ControlError::Untrusted { .. }), "{error}");
    }
    drop(listener);
}

fn identity_of(path: &std::path::Path) -> (u64, u64) {
    let found = std::fs::symlink_metadata(path).unwrap();
    (found.dev(), found.ino())
}

/// Refuses with a text that would change a terminal.
struct Rude;

impl Handler for Rude {
    fn handle(&self, _: Request) -> Result<Response, RequestError> {
        Err(RequestError::new("no\u{1b}[2J\u{9b}1m\r\neverbyte: done\u{202e}"))
    }
}

#[test]
fn refusals_of_servers_are_escaped() {
    let folder = tempfile::tempdir().unwrap();
    let pool = folder.path().join("pool");
    let _server = ControlServer::start(&pool, None, Arc::new(Rude)).unwrap();
    let error = ControlClient::connect(&pool).unwrap().call(Request::Info).unwrap_err();
    assert_eq!(error.to_string(), r"no\u{1b}[2J\u{9b}1m\r\neverbyte: done\u{202e}");
}

#[test]
fn client_rests_between_requests() {
    let folder = tempfile::tempdir().unwrap();
    let pool = folder.path().join("pool");
    let _server = ControlServer::start(&pool, None, Arc::new(Grower)).unwrap();
    let mut client = ControlClient::connect(&pool).unwrap();
    grow(&mut client, 1);
    let connect = || UnixStream::connect(socket_path(&pool)).unwrap();
    let (mut silent, mut slow) = (connect(), connect());
    slow.write_all(b"{").unwrap();
    for stream in [&mut silent, &mut slow] {
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        assert_eq!(std::io::Read::read(stream, &mut [0; 8]).unwrap(), 0, "it is hung up on");
    }
    std::thread::sleep(Duration::from_millis(1500));
    grow(&mut client, 2);
}

#[test]
fn stale_socket_is_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let pool = folder.path().join("pool");
    drop(std::os::unix::net::UnixListener::bind(socket_path(&pool)).unwrap());
    assert!(socket_path(&pool).exists());
    let _server = ControlServer::start(&pool, None, Arc::new(Grower)).unwrap();
    grow(&mut ControlClient::connect(&pool).unwrap(), 1);
}

/// Sends `bytes` and returns every line of the answer.
fn say(pool: &Path, bytes: &[u8]) -> Vec<String> {
    let mut stream = UnixStream::connect(socket_path(pool)).unwrap();
    // The server may hang up in the middle.
    let _ = stream.write_all(bytes);
    let _ = stream.shutdown(std::net::Shutdown::Write);
    BufReader::new(stream).lines().map_while(Result::ok).collect()
}

#[test]
fn garbage_ends_own_connection_only() {
    let folder = tempfile::tempdir().unwrap();
    let pool = folder.path().join("pool");
    let _server = ControlServer::start(&pool, None, Arc::new(Grower)).unwrap();
    let mut bystander = ControlClient::connect(&pool).unwrap();
    grow(&mut bystander, 1);
    let deep = [b"[".repeat(50_000), b"\n".to_vec()].concat();
    for (bytes, expected) in [
        (&b"garbage\n"[..], "this is no request"),
        (b"\n", "this is no request"),
        (b"\xff\xfe\x00\n", "this is no request"),
        (b"{\"version\":9,\"request\":{\"command\":\"fly\"}}\n", "the server has version 1"),
        (b"{\"version\":1,\"request\":{\"command\":\"fly\"}}\n", "unknown variant `fly`"),
        (b"{\"version\":1,\"request\":{\"command\":\"info\"},\"more\":1}\n", "unknown field"),
        (
            b"{\"version\":1,\"request\":{\"command\":\"grow\",\"with\":{\"size_bytes\":-1}}}\n",
            "-1",
        ),
        (&deep, "this is no request"),
        (&vec![b'x'; LINE_BYTES_MAX + 5000], "more than 65536 bytes"),
    ] {
        let lines = say(&pool, bytes);
        assert!(lines.len() == 1 && lines[0].contains(expected), "{expected}: {lines:?}");
    }
    assert!(say(&pool, b"{\"version\":1,").is_empty(), "an unfinished line is dropped");
    assert!(say(&pool, b"{\"version\":1,\"request\":{\"command\":\"check\"}}\n").is_empty());
    grow(&mut bystander, 2);
    for _ in 0..40 {
        say(&pool, b"x");
    }
    grow(&mut ControlClient::connect(&pool).unwrap(), 3);
}

#[test]
fn two_requests_in_one_packet_get_two_answers() {
    let folder = tempfile::tempdir().unwrap();
    let pool = folder.path().join("pool");
    let _server = ControlServer::start(&pool, None, Arc::new(Grower)).unwrap();
    let one = b"{\"version\":1,\"request\":{\"command\":\"grow\",\"with\":{\"size_bytes\":7}}}\n";
    let lines = say(&pool, &[&one[..], &one[..]].concat());
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert!(lines.iter().all(|line| line.contains("\"size_bytes\":7")));
}

#[test]
fn connections_are_bounded() {
    let folder = tempfile::tempdir().unwrap();
    let pool = folder.path().join("pool");
    let _server = ControlServer::start(&pool, None, Arc::new(Grower)).unwrap();
    let mut held: Vec<_> = (0..128).map(|_| ControlClient::connect(&pool).unwrap()).collect();
    held.iter_mut().for_each(|client| grow(client, 1));
    // A newcomer takes the place of the client that rests for the longest time.
    grow(&mut ControlClient::connect(&pool).unwrap(), 1);
    let error = held[0].call(Request::Grow { size_bytes: 1 }).unwrap_err();
    assert!(matches!(error, ControlError::Broken { .. }), "{error}");
    held[1..].iter_mut().for_each(|client| grow(client, 1));
}

#[test]
fn refusal_before_the_request_is_received() {
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    theirs.write_all(b"{\"version\":1,\"error\":\"not for you\"}\n").unwrap();
    drop(theirs);
    let mut client = ControlClient::over(ours, "there".into());
    let error = client.call(Request::Info).unwrap_err();
    assert!(matches!(error, ControlError::Refused(_)), "{error}");
    assert_eq!(error.to_string(), "not for you");
    let error = client.call(Request::Info).unwrap_err();
    assert!(matches!(error, ControlError::Broken { .. }), "{error}");
}

#[test]
fn refusal_during_the_request_is_received() {
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    let flags = rustix::net::SendFlags::DONTWAIT | rustix::net::SendFlags::NOSIGNAL;
    while rustix::net::send(&ours, &[b' '; 64], flags).is_ok() {}
    theirs.write_all(b"{\"version\":1,\"error\":\"not for you\"}\n").unwrap();
    let hanging_up = std::thread::spawn(move || {
        // The request waits for room by then.
        std::thread::sleep(Duration::from_millis(200));
        drop(theirs);
    });
    let mut client = ControlClient::over(ours, "there".into());
    let error = client.call(Request::Info).unwrap_err();
    assert!(matches!(error, ControlError::Refused(_)), "{error}");
    hanging_up.join().unwrap();
}

#[test]
fn long_path_works_and_long_name_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let deep = folder.path().join("d".repeat(100)).join("e".repeat(100));
    std::fs::create_dir_all(&deep).unwrap();
    let pool = deep.join("pool");
    let _server = ControlServer::start(&pool, None, Arc::new(Grower)).unwrap();
    grow(&mut ControlClient::connect(&pool).unwrap(), 1);
    let pool = deep.join("p".repeat(120));
    let error = ControlServer::start(&pool, None, Arc::new(Grower)).err().unwrap();
    assert!(error.to_string().contains("too long"), "{error}");
}

/// Answers a read with the last received bytes, and reports a received descriptor.
#[derive(Default)]
struct Echo(std::sync::Mutex<Vec<u8>>);

impl Handler for Echo {
    fn handle(&self, _: Request) -> Result<Response, RequestError> {
        Err(RequestError::new("without bytes"))
    }

    fn handle_attached(
        &self,
        request: Request,
        attached: Attached,
    ) -> Result<(Response, Vec<u8>), RequestError> {
        let mut kept = self.0.lock().unwrap();
        if let Request::Files { request: FileRequest::Read { .. }, .. } = request {
            let bytes = std::mem::take(&mut *kept);
            return Ok((Response::FileBytes { len: u32::try_from(bytes.len()).unwrap() }, bytes));
        }
        let mut bytes = attached.bytes;
        bytes.push(u8::from(attached.descriptor.is_some()));
        *kept = bytes;
        Ok((Response::FileDone, Vec::new()))
    }
}

#[test]
fn request_bytes_and_descriptors_are_bounded() {
    let folder = tempfile::tempdir().unwrap();
    let pool = folder.path().join("pool");
    let _server = ControlServer::start(&pool, None, Arc::new(Echo::default())).unwrap();
    let mut client = ControlClient::connect(&pool).unwrap();
    let file = FileId { inode: 1, generation: 1 };
    let write = |len: usize| {
        let len = u32::try_from(len).unwrap();
        let request = FileRequest::Write { file, offset: 0, len };
        Request::Files { volume: "v".to_owned(), request }
    };
    let null = std::fs::File::open("/dev/null").unwrap();
    let max = PIECE_BYTES_MAX as usize - 1;
    for (bytes, descriptor) in [
        (vec![], None),
        (b"a\nb\n".to_vec(), Some(std::os::fd::AsFd::as_fd(&null))),
        (vec![7; max], None),
    ] {
        client.call_attached(write(bytes.len()), &bytes, descriptor).unwrap();
        let request = FileRequest::Read { file, offset: 0, len: PIECE_BYTES_MAX };
        let read = Request::Files { volume: "v".to_owned(), request };
        let (answer, mut back) = client.call_attached(read, &[], None).unwrap();
        assert_eq!(back.pop(), Some(u8::from(descriptor.is_some())), "{answer:?}");
        assert!(back == bytes);
    }
    let error = client.call(write(max + 2)).unwrap_err().to_string();
    assert!(error.contains("more than 1048576 in one message"), "{error}");
    // A client that ends within its bytes, or sends unannounced ones.
    assert!(say(&pool, b"{\"version\":1,").is_empty());
    let line = serde_json::json!({ "version": 1, "request": write(5) }).to_string();
    assert!(say(&pool, format!("{line}\nabc").as_bytes()).is_empty());
}

/// Answers after a while.
struct Slow(Duration);

impl Handler for Slow {
    fn handle(&self, _: Request) -> Result<Response, RequestError> {
        std::thread::sleep(self.0);
        Ok(Response::Grown { size_bytes: 1 })
    }
}

#[test]
fn client_waits_for_working_not_for_silent_server() {
    let folder = tempfile::tempdir().unwrap();
    let pool = folder.path().join("pool");
    // Longer than the client bears silence, and than signs of life are apart.
    let server = ControlServer::start(&pool, None, Arc::new(Slow(Duration::from_secs(7)))).unwrap();
    let mut client = ControlClient::connect(&pool).unwrap();
    client.set_timeout(Some(Duration::from_secs(5))).unwrap();
    grow(&mut client, 1);
    drop(server);
    let (near, _far) = UnixStream::pair().unwrap();
    let mut client = ControlClient::over(near, pool);
    client.set_timeout(Some(Duration::from_millis(50))).unwrap();
    let error = client.call(Request::Info).unwrap_err();
    assert!(matches!(error, ControlError::Silent { .. }), "{error}");
}

#[test]
fn volumes_of_unknown_kinds_have_the_common_fields() {
    let common = serde_json::json!({
        "name": "v", "kind": "block", "uid": 1, "size_bytes": 512, "used_bytes": null, "log_bytes": 0,
        "lanes": 1, "delta": "auto", "threshold_lines": 32, "epoch": 3,
        "read_only": null, "clients": null
    });
    let read =
        |value: &serde_json::Value| serde_json::from_value::<VolumeStatus>(value.clone()).unwrap();
    let found = read(&common);
    assert_eq!((found.of_kind, found.checkpoint_lines), (None, 0));
    let mut other = common.clone();
    other["swap"] = serde_json::json!({ "leases": 7 });
    assert_eq!(read(&other), read(&common));
    let mut cache = common.clone();
    cache["cache"] = serde_json::json!({
        "backing": "/dev/sdb", "backing_bytes": 512, "dram_bytes": 4096, "scm_bytes": 4096,
        "mode": "write-back", "policy": "everbyte", "cached_bytes": 0, "dirty_bytes": 0,
        "hit_permille": null, "counts": {}, "reasons": {}
    });
    let found = read(&cache);
    assert_eq!(found.cache().unwrap().backing, "/dev/sdb");
    let again = serde_json::to_value(&found).unwrap();
    assert_eq!(again["cache"]["backing"], "/dev/sdb");
}

#[test]
fn refusal_has_a_cause_for_clients_that_know_it() {
    let line = |text: &str| serde_json::from_str::<crate::message::ResponseLine>(text).unwrap();
    let known = line(r#"{"version":1,"error":"no","cause":"cache-dirty"}"#);
    assert_eq!(known.cause, Some(Cause::CacheDirty));
    let unknown = line(r#"{"version":1,"error":"no","cause":"moon-phase"}"#);
    assert_eq!((unknown.error.as_deref(), unknown.cause), (Some("no"), Some(Cause::Other)));
    assert_eq!(line(r#"{"version":1,"error":"no"}"#).cause, None);
}

/// Answers as a server without leases, or as one that lies about them.
struct Lender(&'static str);

impl Handler for Lender {
    fn handle(&self, request: Request) -> Result<Response, RequestError> {
        let ranges = match self.0 {
            "nothing" => vec![],
            "backwards" => vec![(1 << 21, 0)],
            "unsent" => vec![(0, 1 << 21)],
            words => return Err(RequestError::new(format!("{words}: {request:?}"))),
        };
        Ok(Response::Lent { ranges })
    }
}

#[test]
fn lease_of_older_or_lying_server_is_an_error() {
    for (server, words) in [
        ("this is no request", "older version"),
        ("all runs are lent", "all runs are lent"),
        ("nothing", "cannot have been lent"),
        ("backwards", "cannot have been lent"),
        ("unsent", "ended before it answered"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let pool = folder.path().join("pool");
        let _server = ControlServer::start(&pool, None, Arc::new(Lender(server))).unwrap();
        let mut client = ControlClient::connect(&pool).unwrap();
        let error = client.borrow_runs("s", 1).unwrap_err().to_string();
        assert!(error.contains(words), "{server}: {error}");
    }
}

/// A server that answers each request with `answer`, after `signs` signs of life.
fn answering(answer: String, signs: usize, rest: Duration) -> ControlClient {
    let (ours, theirs) = UnixStream::pair().unwrap();
    std::thread::spawn(move || {
        let mut theirs = theirs;
        let mut request = [0; 4096];
        while std::io::Read::read(&mut theirs, &mut request).is_ok_and(|len| len > 0) {
            for _ in 0..signs {
                if theirs.write_all(b" ").is_err() {
                    return;
                }
                std::thread::sleep(rest);
            }
            if theirs.write_all(answer.as_bytes()).is_err() {
                return;
            }
        }
    });
    ControlClient::over(ours, "there".into())
}

#[test]
fn signs_of_life_do_not_hold_a_client_for_ever() {
    let rest = Duration::from_millis(10);
    let mut client = answering(String::new(), usize::MAX, rest);
    client.set_timeout(Some(Duration::from_secs(20))).unwrap();
    client.set_time_max(Some(Duration::from_millis(100)));
    let error = client.call(Request::Info).unwrap_err();
    assert!(matches!(error, ControlError::Slow { .. }), "{error}");
    // Fewer signs than that, and then an answer.
    let answer = "{\"version\":1,\"error\":\"not for you\"}\n";
    let mut client = answering(answer.to_owned(), 5, rest);
    client.set_time_max(Some(Duration::from_secs(20)));
    for _ in 0..2 {
        let error = client.call(Request::Info).unwrap_err();
        assert!(matches!(error, ControlError::Refused(_)), "{error}");
    }
}

#[test]
fn answers_of_any_length_are_bounded() {
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    let sending = std::thread::spawn(move || {
        let piece = vec![b'['; 1 << 20];
        (0..80).take_while(|_| theirs.write_all(&piece).is_ok()).count()
    });
    let mut client = ControlClient::over(ours, "there".into());
    let error = client.call(Request::Info).unwrap_err();
    assert!(matches!(error, ControlError::Nonsense { .. }), "{error}");
    drop(client);
    assert!(sending.join().unwrap() < 80);
    let reason = "\u{e4}".repeat(100 << 10);
    let answer = format!("{{\"version\":1,\"error\":\"{reason}\"}}\n");
    let error = answering(answer, 0, Duration::ZERO).call(Request::Info).unwrap_err();
    assert!(error.to_string().len() < 70 << 10);
}
