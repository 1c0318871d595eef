//! A served pool: exports, the control socket, signals, crashes.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use everbyte_device::{Fua, Hole};
use everbyte_nbd::{Address, Client};
use everbyte_policy::trace::{ReadOptions, RequestOp, TraceReader};
use everbyte_testkit::is_root;
use rustix::process::Signal;

use crate::{Outcome, Place, Running, everbyte};

#[test]
fn commands_go_through_the_server() {
    let place = Place::with_disk();
    let server = place.serve("POOL", "");
    let uri = Address::Unix(place.socket()).uri("disk");
    assert_eq!(server.ready, format!("ready: {uri}"));
    let control = place.pool.with_file_name("pool.sock");
    assert_eq!(fs::metadata(&control).unwrap().permissions().mode() & 0o777, 0o600);

    let info = place.info();
    assert_eq!(info["serving"]["pid"], server.child.id());
    assert_eq!(info["serving"]["exports"][0]["uris"][0], uri);
    assert_eq!(info["clean"], true);
    place.run("volume create POOL more --size 4M").good();
    let mut client = place.client("more");
    client.write(0, &[7; 512], Fua::No).unwrap();
    place.run("volume resize POOL more --size 6M").good();
    assert_eq!(place.client("more").size_bytes(), 6 << 20);
    place.run("pool grow POOL --size 40M").good();
    assert_eq!(place.info()["size_bytes"], 40 << 20);
    assert_eq!(fs::metadata(&place.pool).unwrap().len(), 40 << 20);
    let stats = place.run("pool info POOL --stats --json").json();
    assert_eq!(stats["servers"][0]["written_bytes"], 512);
    assert_eq!(place.run("pool check POOL --json").json()["volumes"], 2);
    place.run("volume delete POOL nothing").failed(1, &["\"nothing\""]);
    server.stop();
    assert!(!control.exists() && !place.socket().exists());
    assert_eq!(place.info()["clean"], true);
}

/// The user `nobody`, on every Linux.
const OTHER_USER: u32 = 65534;

#[test]
fn frame_writes_are_counted_on_request() {
    let place = Place::with_disk();
    place.run("pool info POOL --wear").failed(1, &["are not counted", "--count-wear"]);
    let server = place.serve("POOL", "--emulate dram --count-wear");
    let wear = || place.run("pool info POOL --wear --json").json();
    let before = wear();
    place.run("volume create POOL other --size 1M").good();
    let after = wear();
    let of = |wear: &serde_json::Value, key: &str| wear[key].as_u64().unwrap();
    assert!(of(&after, "lines") > of(&before, "lines"), "{before} {after}");
    assert!(of(&after, "lines_most") <= of(&after, "lines"));
    assert!(of(&after, "frames_written") <= of(&after, "frames"));
    assert!(of(&after, "frame_most") < of(&after, "frames"));
    let text = place.run("pool info POOL --wear").good();
    assert!(text.contains("times the average frame's"), "{text}");
    server.stop();
    place.run("serve POOL --nbd unix:FOLDER/x.sock --count-wear").failed(2, &["--emulate"]);
}

fn may_become_another_user() -> bool {
    is_root("become another user")
}

/// Lets every user into the place, and to its pool.
fn open_to_all(place: &Place) {
    for (path, mode) in [(place.folder.path(), 0o777), (place.pool.as_path(), 0o666)] {
        fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }
}

#[test]
fn foreign_user_cannot_command_server() {
    if !may_become_another_user() {
        return;
    }
    let place = Place::with_disk();
    open_to_all(&place);
    let server = place.serve("POOL", "");
    let control = place.pool.with_file_name("pool.sock");
    fs::set_permissions(control, Permissions::from_mode(0o666)).unwrap();
    let arguments = place.arguments("volume delete POOL disk");
    let stranger = Outcome::of(everbyte().args(arguments).uid(OTHER_USER).gid(OTHER_USER));
    stranger.failed(1, &[&format!("runs as user {OTHER_USER}"), "pool's owner and root"]);
    assert_eq!(place.info()["volumes"][0]["name"], "disk");
    server.stop();
}

#[test]
fn commands_obey_no_stranger_who_plays_the_server() {
    if !may_become_another_user() {
        return;
    }
    let place = Place::with_disk();
    open_to_all(&place);
    let line = "serve POOL --nbd unix:FOLDER/nbd.sock";
    let command = &mut everbyte();
    let server =
        Running::start(command.args(place.arguments(line)).uid(OTHER_USER).gid(OTHER_USER));
    assert!(server.ready.starts_with("ready: "), "{}", server.ready);
    let words = [&*format!("belongs to user {OTHER_USER}"), "pool to user 0"];
    place.run("volume delete POOL disk").failed(1, &words);
    // The process at the other end counts, not the apparent creator of the socket.
    chown(place.pool.with_file_name("pool.sock"), Some(0), Some(0)).unwrap();
    let words = [&*format!("runs as user {OTHER_USER}"), "pool belongs to user 0"];
    place.run("volume delete POOL disk").failed(1, &words);
    server.kill();
    fs::set_permissions(&place.pool, Permissions::from_mode(0o600)).unwrap();
    assert_eq!(place.info()["volumes"][0]["name"], "disk");
}

#[test]
fn root_commands_server_of_user() {
    if !may_become_another_user() {
        return;
    }
    let place = Place::with_disk();
    for path in [place.folder.path(), place.pool.as_path()] {
        chown(path, Some(OTHER_USER), Some(OTHER_USER)).unwrap();
    }
    let line = "serve POOL --nbd unix:FOLDER/nbd.sock";
    let command = &mut everbyte();
    let server =
        Running::start(command.args(place.arguments(line)).uid(OTHER_USER).gid(OTHER_USER));
    assert_eq!(place.info()["serving"]["pid"], server.child.id());
    place.run("volume create POOL more --size 4M").good();
    place.run("volume delete POOL more").good();
    server.stop();
}

#[test]
fn root_directory_belongs_to_creator() {
    if !may_become_another_user() {
        return;
    }
    let place = Place::with_disk();
    for path in [place.folder.path(), place.pool.as_path()] {
        chown(path, Some(OTHER_USER), Some(OTHER_USER)).unwrap();
    }
    let by_another = |line: &str| {
        let mut command = everbyte();
        command.args(place.arguments(line)).uid(OTHER_USER).gid(OTHER_USER);
        command
    };
    Outcome::of(&mut by_another("volume create POOL alone --kind fs --size 8M")).good();
    let server = Running::start(&mut by_another("serve POOL --nbd unix:FOLDER/nbd.sock"));
    Outcome::of(&mut by_another("volume create POOL served --kind fs --size 8M")).good();
    for name in ["alone", "served"] {
        let root = place.run(&format!("fs stat --json POOL/{name}:/")).json();
        assert_eq!(
            (&root["uid"], &root["gid"]),
            (&OTHER_USER.into(), &OTHER_USER.into()),
            "{name}"
        );
    }
    server.stop();
}

#[test]
fn options_of_other_kinds_are_refused() {
    let place = Place::with_disk();
    for (options, words) in [
        ("--kind fs --checksum crc32c", "--checksum"),
        ("--kind swap -o delta=on", "-o delta"),
        ("--kind swap -o lanes=2", "-o lanes"),
        ("-o lanes=8,color=red", "'color"),
        ("-o lanes", "lanes"),
    ] {
        place.run(&format!("volume create POOL x --size 8M {options}")).failed(2, &[words]);
    }
}

#[test]
fn second_opener_sees_pool_owner() {
    let place = Place::with_disk();
    let server = place.serve("POOL", "");
    let pid = server.child.id().to_string();
    for command in ["serve POOL --nbd tcp:0", "pool create POOL --size 1M --force"] {
        let control = place.pool.with_file_name("pool.sock");
        let words =
            ["is being served by process", &pid, control.to_str().unwrap(), "nbd+unix:///disk"];
        place.run(command).failed(1, &words);
    }
    server.stop();
}

#[test]
fn used_volume_is_deleted_by_force_only() {
    let place = Place::with_disk();
    let server = place.serve("POOL", "");
    let mut client = place.client("disk");
    place.run("volume delete POOL disk").failed(1, &["1 client has", "--force"]);
    client.write(0, &[1; 4096], Fua::Yes).unwrap();
    place.run("volume delete POOL disk --force").good();
    assert!(client.write(0, &[2; 4096], Fua::No).is_err());
    assert!(client.read(0, 512).is_err());
    assert!(Client::connect(&Address::Unix(place.socket()), "disk").is_err());
    place.run("volume create POOL disk --size 1M").good();
    assert_eq!(place.client("disk").read(0, 512).unwrap(), [0; 512]);
    assert_eq!(place.run("pool check POOL --json").json()["clean"], true);
    server.stop();
}

#[test]
fn flushed_writes_survive_killed_server() {
    let place = Place::with_disk();
    let server = place.serve("POOL", "--checkpoint-interval 10m");
    let mut client = place.client("disk");
    client.write(0, &[1; 4096], Fua::No).unwrap();
    client.flush().unwrap();
    client.write(4096, &[2; 4096], Fua::Yes).unwrap();
    client.write(0, &[3; 4096], Fua::No).unwrap();
    server.kill();
    let before = place.bytes();
    let info = place.info();
    assert_eq!(info["clean"], false);
    assert!(info["records_undone"].as_u64().unwrap() > 0);
    assert!(place.bytes() == before, "looking changed the pool");
    assert!(place.socket().exists(), "the dead server's socket is stale");

    let server = place.serve("POOL", "");
    assert!(server.ready.starts_with("ready: "), "{}", server.ready);
    let mut client = place.client("disk");
    assert_eq!(client.read(0, 4096).unwrap(), [1; 4096]);
    assert_eq!(client.read(4096, 4096).unwrap(), [2; 4096]);
    assert_eq!(place.info()["clean"], false, "it was not, when the server began");
    server.stop();
    assert_eq!(place.info()["clean"], true);
    place.run("pool check POOL").good();
}

#[test]
fn single_volume_has_several_addresses() {
    let place = Place::with_disk();
    place.run("volume create POOL other --size 1M").good();
    let mut server = place.serve("POOL/other", "--nbd tcp:0");
    let second = server.line();
    let uri = second.strip_prefix("ready: ").unwrap();
    assert!(uri.starts_with("nbd://127.0.0.1:"), "{uri}");
    assert_eq!(Client::connect_uri(uri).unwrap().size_bytes(), 1 << 20);
    assert_eq!(place.client("").size_bytes(), 1 << 20, "the only export is the default one");
    assert!(Client::connect(&Address::Unix(place.socket()), "disk").is_err());
    let names: Vec<_> = Client::list(&Address::Unix(place.socket())).unwrap();
    assert_eq!(names.iter().map(|e| &*e.name).collect::<Vec<_>>(), ["other"]);
    server.stop();
}

#[test]
fn empty_pool_prints_ready() {
    let place = Place::empty();
    place.run("pool create POOL --size 4M").good();
    let server = place.serve("POOL", "");
    assert_eq!(server.ready, format!("ready: {}", Address::Unix(place.socket()).uri("")));
    server.stop();
}

#[test]
fn read_only_serving_changes_nothing() {
    let place = Place::with_disk();
    let server = place.serve("POOL", "");
    place.client("disk").write(0, &[5; 4096], Fua::Yes).unwrap();
    server.kill();
    let before = place.bytes();
    let server = place.serve("POOL", "--read-only");
    let mut client = place.client("disk");
    assert!(client.is_read_only());
    assert_eq!(client.read(0, 4096).unwrap(), [5; 4096]);
    assert!(client.write(0, &[6; 512], Fua::No).is_err());
    for command in [
        "volume create POOL x --size 1M",
        "volume delete POOL disk --force",
        "pool grow POOL --size 64M",
    ] {
        place.run(command).failed(1, &["read-only"]);
    }
    assert_eq!(place.info()["serving"]["read_only"], true);
    place.run("pool check POOL").good();
    place.run("serve POOL --nbd tcp:0 --read-only").failed(1, &["is being served"]);
    server.stop();
    assert!(place.bytes() == before);
}

#[test]
fn emulation_is_shown() {
    let place = Place::with_disk();
    let server = place.serve("POOL", "--emulate pcm --flush force");
    place.client("disk").write(0, &[5; 4096], Fua::Yes).unwrap();
    assert_eq!(place.info()["medium"]["emulates"], "pcm");
    let stats = place.run("pool info POOL --stats --json").json();
    assert!(stats["medium"]["modelled_ns"].as_u64().unwrap() > 0);
    server.stop();
}

/// All requests of a client to `disk`, read from the record as a trace.
fn recorded(path: &std::path::Path) -> Vec<(RequestOp, u64, u64)> {
    let mut reader = TraceReader::open(path, &ReadOptions::default()).unwrap();
    let requests: Vec<_> = reader.by_ref().map(|request| request.unwrap()).collect();
    assert!(requests.iter().map(|request| request.time_ns).is_sorted());
    assert_eq!(reader.files().name(0), Some("disk"));
    requests.iter().map(|request| (request.op, request.offset, request.len)).collect()
}

#[test]
fn requests_are_recorded_as_a_trace() {
    let place = Place::with_disk();
    for name in ["trace.csv", "trace.csv.zst"] {
        let path = place.folder.path().join(name);
        let server = place.serve("POOL", &format!("--record {}", path.display()));
        let mut client = place.client("disk");
        client.write(4096, &[1; 700], Fua::Yes).unwrap();
        client.read(0, 8192).unwrap();
        client.trim(8192, 4096, Fua::No).unwrap();
        client.write_zeroes(12288, 512, Hole::Allowed, false, Fua::No).unwrap();
        client.flush().unwrap();
        drop(client);
        server.stop();
        let wanted = [
            (RequestOp::Write, 4096, 700),
            (RequestOp::Read, 0, 8192),
            (RequestOp::Trim, 8192, 4096),
            (RequestOp::Zero, 12288, 512),
            (RequestOp::Flush, 0, 0),
        ];
        assert_eq!(recorded(&path), wanted, "{name}");
    }
}

/// Several clients make their own requests in order until the server is ended. The record has a
/// prefix of each client's requests, and contains every request answered before the end.
#[test]
fn record_has_requests_of_all_clients() {
    const CLIENTS: u64 = 4;
    let place = Place::with_disk();
    let path = place.folder.path().join("trace.csv");
    let mut server = place.serve("POOL", &format!("--record {}", path.display()));
    let (ready, go) = mpsc::channel();
    let clients: Vec<_> = (0..CLIENTS)
        .map(|client| {
            let (mut connection, ready) = (place.client("disk"), ready.clone());
            thread::spawn(move || {
                let mut answered = 0;
                // The length identifies the client of a request, the place identifies the request.
                let len = usize::try_from(client + 1).unwrap();
                while connection.write(answered, &vec![1; len], Fua::No).is_ok() {
                    answered += 1;
                    if answered == 2000 {
                        ready.send(()).unwrap();
                    }
                }
                answered
            })
        })
        .collect();
    (0..CLIENTS).for_each(|_| go.recv_timeout(Duration::from_secs(60)).unwrap());
    assert!(server.signal(Signal::TERM).success());
    let answered: Vec<u64> = clients.into_iter().map(|client| client.join().unwrap()).collect();
    let all = recorded(&path);
    for (client, answered) in (0..CLIENTS).zip(answered) {
        let own: Vec<u64> =
            all.iter().filter(|(_, _, len)| *len == client + 1).map(|(_, at, _)| *at).collect();
        assert!(own.iter().copied().eq(0..own.len() as u64), "client {client}: a gap or a swap");
        // The server may have done the last request without sending its reply.
        let recorded = own.len() as u64;
        assert!((answered..=answered + 1).contains(&recorded), "{answered}, but {recorded}");
    }
}

#[test]
fn failed_record_stops_no_server() {
    let place = Place::with_disk();
    place
        .run("serve POOL --nbd unix:FOLDER/nbd.sock --record FOLDER/no/trace.csv")
        .failed(1, &["cannot write to", "no/trace.csv"]);
    let before = place.bytes();
    place.run("serve POOL --nbd unix:FOLDER/nbd.sock --record POOL").failed(1, &["is the pool"]);
    assert_eq!(place.bytes().len(), before.len());
    let line = place.arguments("serve POOL --nbd unix:FOLDER/nbd.sock --record /dev/full --force");
    let said = place.folder.path().join("said");
    let log = fs::File::create(&said).unwrap();
    let server = Running::start_with(everbyte().args(line), log.into());
    let mut client = place.client("disk");
    for number in 0..20_000 {
        client.write(number % 8 * 4096, &[1; 64], Fua::No).unwrap();
    }
    client.flush().unwrap();
    assert_eq!(client.read(0, 64).unwrap(), [1; 64]);
    server.stop();
    let said = fs::read_to_string(said).unwrap();
    let told = said.matches("/dev/full: recording has ended; serving goes on").count();
    assert!(told == 1 && said.contains("No space left on device"), "{said}");
    let ended = ["the record is not complete", "the record is complete"];
    assert_eq!(ended.map(|words| said.contains(words)), [true, false], "{said}");
}

#[test]
fn failed_start_leaves_pool_unchanged() {
    let place = Place::with_disk();
    fs::write(place.socket(), "precious").unwrap();
    place.run("serve POOL --nbd unix:FOLDER/nbd.sock").failed(1, &["no socket"]);
    assert_eq!(fs::read(place.socket()).unwrap(), b"precious");
    assert!(!place.pool.with_file_name("pool.sock").exists());
    assert_eq!(place.info()["clean"], true);
}

#[test]
fn interrupt_ends_used_server() {
    let place = Place::with_disk();
    let mut server = place.serve("POOL", "");
    let mut client = place.client("disk");
    client.write(0, &[9; 4096], Fua::No).unwrap();
    let (done, wait) = mpsc::channel();
    let writing = thread::spawn(move || {
        while client.write(4096, &[8; 4096], Fua::No).is_ok() {}
        done.send(()).unwrap();
    });
    assert!(server.signal(Signal::INT).success());
    wait.recv_timeout(Duration::from_secs(20)).unwrap();
    writing.join().unwrap();
    assert_eq!(place.info()["clean"], true);
    let server = place.serve("POOL", "");
    assert_eq!(place.client("disk").read(0, 4096).unwrap(), [9; 4096]);
    server.stop();
}

#[test]
fn read_only_export_spares_others() {
    let place = Place::with_disk();
    place.run("volume create POOL base --size 4M").good();
    let unknown = "serve POOL --nbd unix:FOLDER/nbd.sock --read-only-export nothing";
    place.run(unknown).failed(1, &["no export \"nothing\"", "volume list"]);
    let server = place.serve("POOL", "--read-only-export base");
    let (mut disk, mut base) = (place.client("disk"), place.client("base"));
    assert_eq!((disk.is_read_only(), base.is_read_only()), (false, true));
    disk.write(0, &[7; 512], Fua::Yes).unwrap();
    assert!(base.write(0, &[7; 512], Fua::No).is_err());
    assert_eq!(place.client("base").read(0, 512).unwrap(), [0; 512]);
    server.stop();
}

#[test]
fn sockets_have_requested_mode_and_group() {
    use std::os::unix::fs::MetadataExt;
    let place = Place::with_disk();
    // Another group if permitted: only root may set it.
    let own = fs::metadata(place.folder.path()).unwrap();
    let group = if own.uid() == 0 { OTHER_USER } else { own.gid() };
    let server = place.serve("POOL", &format!("--socket-mode 660 --socket-group {group}"));
    let socket = fs::metadata(place.socket()).unwrap();
    assert_eq!((socket.permissions().mode() & 0o777, socket.gid()), (0o660, group));
    let control = fs::metadata(place.pool.with_file_name("pool.sock")).unwrap();
    assert_eq!(control.permissions().mode() & 0o777, 0o600, "commands are not for the group");
    server.stop();
    let serve = "serve POOL --nbd unix:FOLDER/nbd.sock";
    place.run(&format!("{serve} --socket-mode 888")).failed(2, &["octal"]);
    place.run(&format!("{serve} --socket-group no-such-group")).failed(2, &["no group"]);
}

#[test]
fn taken_address_is_explained() {
    let place = Place::with_disk();
    fs::write(place.folder.path().join("file"), "precious").unwrap();
    let serve = "serve POOL --nbd unix:FOLDER/file";
    place.run(serve).failed(1, &["is no socket\nhint: remove it, or choose another path"]);
    assert_eq!(place.info()["clean"], true);
}

#[test]
fn rename_moves_export_without_clients() {
    let place = Place::with_disk();
    place.run("volume create POOL other --size 4M").good();
    place.run("volume rename POOL disk first").good();
    place.run("volume rename POOL first other").failed(1, &["exists already"]);
    place.run("volume rename POOL nothing there").failed(1, &["\"nothing\"", "volume list"]);
    let server = place.serve("POOL", "--read-only-export other");
    place.run("volume rename POOL other more").failed(1, &["end it first"]);
    let mut client = place.client("first");
    client.write(0, &[7; 512], Fua::No).unwrap();
    place.run("volume rename POOL first second").failed(1, &["1 client has volume first open"]);
    client.write(512, &[8; 512], Fua::No).unwrap();
    let renamed = place.run("volume rename POOL first second --force --json").json();
    assert_eq!((&renamed["name"], &renamed["clients"]), (&"second".into(), &0.into()));
    assert!(client.read(0, 512).is_err(), "its client was disconnected");
    assert!(Client::connect(&Address::Unix(place.socket()), "first").is_err());
    let found = place.client("second").read(0, 1024).unwrap();
    assert_eq!((found[0], found[512]), (7, 8));
    place.run("volume create POOL first --size 4M").good();
    server.stop();
    let listed = place.run("volume list POOL --json").json();
    let names = listed["volumes"].as_array().unwrap().iter();
    let names: Vec<_> = names.map(|volume| volume["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["first", "other", "second"]);
    assert!(place.run("pool check POOL").status == 0);
}
