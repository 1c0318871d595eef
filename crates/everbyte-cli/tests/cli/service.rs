//! A server as a service: its configuration file, its reports, and passed sockets.

use std::fs;
use std::net::{TcpListener, UdpSocket};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixDatagram, UnixListener};
use std::process::{Command, Stdio};
use std::time::Duration;

use everbyte_device::Fua;
use everbyte_nbd::{Address, Client};

use crate::{Outcome, Place, Running, everbyte};

const WAIT_MAX: Duration = Duration::from_secs(60);

impl Place {
    /// Writes a configuration with the paths of this place.
    fn configure(&self, text: &str) {
        let text = text.replace("POOL", self.pool.to_str().unwrap());
        let text = text.replace("FOLDER", self.folder.path().to_str().unwrap());
        fs::write(self.folder.path().join("c.toml"), text).unwrap();
    }
}

#[test]
fn config_has_the_effect_of_options() {
    let place = Place::with_disk();
    place.run("volume create POOL base --size 4M").good();
    place.configure(
        "pool = 'POOL'\nnbd = ['unix:FOLDER/nbd.sock', 'tcp:127.0.0.1:0']\nread-only-export = 'base'\n\
         socket-mode = 660\nwrite-through = true\npopulate = false\ncheckpoint-interval = '7s'\n",
    );
    let mut server =
        Running::start(everbyte().args(place.arguments("serve --config FOLDER/c.toml")));
    let lines = [server.ready.clone(), server.line(), server.line(), server.line()];
    assert!(lines.iter().all(|line| line.starts_with("ready: nbd")), "{lines:?}");
    let mode = fs::metadata(place.socket()).unwrap().permissions();
    assert_eq!(std::os::unix::fs::PermissionsExt::mode(&mode) & 0o777, 0o660);
    let mut disk = place.client("disk");
    disk.write(0, &[7; 512], Fua::No).unwrap();
    assert!(place.client("base").write(0, &[7; 512], Fua::No).is_err());
    // With write_through, an answered write survives the kill.
    server.kill();
    let server = place.serve("POOL", "");
    assert_eq!(place.client("disk").read(0, 512).unwrap(), [7; 512]);
    server.stop();
}

#[test]
fn config_mistakes_name_file_line_and_remedy() {
    let place = Place::with_disk();
    let before = place.bytes();
    for (text, at, words) in [
        ("pool = 'POOL'\nnbdd = 'tcp:0'", ":2: ", "unknown key \"nbdd\": the keys are pool, nbd,"),
        ("config = 'x'\npool = 'POOL'", ":1: ", "unknown key \"config\""),
        ("pool = 'POOL'\n\n[nbd]\n", ":3: ", "a value of type table"),
        ("nbd = 'tcp:0'", "c.toml: ", "the key pool is missing"),
        ("pool = 'POOL'\nnbd = 'nowhere'", ":2: ", "use unix:PATH"),
        ("pool = 'POOL'\nread-only = 'yes'", ":2: ", "read-only is true or false"),
        ("pool = 'POOL'\nflush = ['auto']", ":2: ", "flush has one value"),
        ("pool = 'POOL'\nflush = 'sometimes'", ":2: ", "possible values: auto, force"),
        ("pool = 'POOL'\ncheckpoint-interval = 5", ":2: ", "5"),
        ("pool = 'POOL'\ncount-wear = true", "c.toml: ", "--emulate"),
        ("pool = true", ":1: ", "pool is a path"),
        ("pool = 'POOL'\npool = 'POOL'", ":2: ", "duplicate key"),
        ("pool = 'POOL", ":1: ", "c.toml"),
        ("pool = '-x'", "", "there is no pool at -x"),
    ] {
        place.configure(text);
        let status = if at.is_empty() { 1 } else { 2 };
        place.run("serve --config FOLDER/c.toml").failed(status, &[at, words]);
    }
    fs::write(place.folder.path().join("c.toml"), b"pool = '\xff'").unwrap();
    place.run("serve --config FOLDER/c.toml").failed(2, &["c.toml: ", "UTF-8"]);
    fs::write(place.folder.path().join("c.toml"), vec![b'#'; 2 << 20]).unwrap();
    place.run("serve --config FOLDER/c.toml").failed(1, &["c.toml", "1048576"]);
    place.run("serve --config FOLDER").failed(1, &["directory"]);
    place.run("serve --config FOLDER/none").failed(1, &["none", "No such file"]);
    place.run("serve POOL --config FOLDER/c.toml").failed(2, &["--config"]);
    place.run("serve").failed(2, &["POOL"]);
    assert!(place.bytes() == before);
}

/// The fields of the next reports, up to a report with `field`.
fn reports_until(manager: &UnixDatagram, field: &str) -> String {
    manager.set_read_timeout(Some(WAIT_MAX)).unwrap();
    let mut all = String::new();
    while !all.contains(field) {
        let mut bytes = [0; 4096];
        let len = manager.recv(&mut bytes).unwrap();
        all += &format!("{}\n", std::str::from_utf8(&bytes[..len]).unwrap());
    }
    all
}

#[test]
fn server_reports_ready_and_stopping() {
    let place = Place::with_disk();
    let path = place.folder.path().join("notify");
    let manager = UnixDatagram::bind(&path).unwrap();
    let arguments = place.arguments("serve POOL --nbd unix:FOLDER/nbd.sock");
    let server = Running::begin(everbyte().args(arguments).env("NOTIFY_SOCKET", &path));
    let said = reports_until(&manager, "READY=1");
    assert!(said.starts_with("STATUS=opening "), "{said}");
    assert!(said.contains("exports: 1\n"), "{said}");
    // Ready means usable.
    drop(place.client("disk"));
    server.stop();
    let said = reports_until(&manager, "STOPPING=1");
    assert!(!said.contains("READY=1"), "{said}");
}

#[test]
fn server_that_fails_never_reports_ready() {
    let place = Place::with_disk();
    let server = place.serve("POOL", "");
    let path = place.folder.path().join("notify");
    let manager = UnixDatagram::bind(&path).unwrap();
    let arguments = place.arguments("serve POOL --nbd unix:FOLDER/other.sock");
    let second = Outcome::of(everbyte().args(arguments).env("NOTIFY_SOCKET", &path));
    second.failed(1, &["is being served by process"]);
    manager.set_nonblocking(true).unwrap();
    let mut bytes = [0; 4096];
    while let Ok(len) = manager.recv(&mut bytes) {
        assert!(!bytes[..len].starts_with(b"READY=1"));
    }
    assert!(!place.folder.path().join("other.sock").exists());
    server.stop();
}

/// `everbyte` as started by a service manager, with `socket` as its descriptor 3.
pub(crate) fn activated(
    place: &Place,
    socket: OwnedFd,
    variables: &str,
    arguments: &str,
) -> Command {
    let mut command = Command::new("/bin/sh");
    let script = format!("exec 3<&0 </dev/null; {variables} exec \"$0\" \"$@\"");
    command.args(["-c", &script, env!("CARGO_BIN_EXE_everbyte")]);
    command.args(place.arguments(arguments)).env_remove("RUST_LOG").stdin(Stdio::from(socket));
    command
}

const PASSED: &str = "LISTEN_PID=$$ LISTEN_FDS=1 LISTEN_FDNAMES=nbd";

#[test]
fn passed_socket_serves_and_stays() {
    let place = Place::with_disk();
    let unix = UnixListener::bind(place.socket()).unwrap();
    // A client can connect before the server exists.
    let early = std::os::unix::net::UnixStream::connect(place.socket()).unwrap();
    for arguments in ["serve POOL", "serve POOL --nbd unix:FOLDER/nbd.sock"] {
        let socket = OwnedFd::from(unix.try_clone().unwrap());
        let server = Running::start(&mut activated(&place, socket, PASSED, arguments));
        assert_eq!(server.ready, format!("ready: {}", Address::Unix(place.socket()).uri("disk")));
        drop(place.client("disk"));
        server.stop();
        assert!(place.socket().exists());
    }
    drop(early);
    let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = Address::Tcp(tcp.local_addr().unwrap());
    let server = Running::start(&mut activated(&place, tcp.into(), PASSED, "serve POOL"));
    drop(Client::connect(&address, "disk").unwrap());
    server.stop();
}

#[test]
fn foreign_descriptors_are_refused() {
    let place = Place::with_disk();
    let before = place.bytes();
    let unix = UnixListener::bind(place.socket()).unwrap();
    let unix = || OwnedFd::from(unix.try_clone().unwrap());
    let (stream, _peer) = std::os::unix::net::UnixStream::pair().unwrap();
    let file = fs::File::open(&place.pool).unwrap();
    for (socket, variables, words) in [
        (unix(), "LISTEN_PID=$$ LISTEN_FDS=1", "FileDescriptorName=nbd"),
        (unix(), "LISTEN_PID=$$ LISTEN_FDS=1 LISTEN_FDNAMES=web", "\"web\""),
        (unix(), "LISTEN_PID=$$ LISTEN_FDS=2 LISTEN_FDNAMES=nbd:nbd", "ListenStream="),
        (unix(), "LISTEN_PID=$$ LISTEN_FDS=999999999 LISTEN_FDNAMES=nbd", "number up to 64"),
        (unix(), "LISTEN_PID=$$ LISTEN_FDS=-1 LISTEN_FDNAMES=nbd", "number up to 64"),
        (UdpSocket::bind("127.0.0.1:0").unwrap().into(), PASSED, "ListenStream="),
        (file.into(), PASSED, "ListenStream="),
        (stream.into(), PASSED, "does not listen"),
    ] {
        Outcome::of(&mut activated(&place, socket, variables, "serve POOL")).failed(1, &[words]);
    }
    assert_eq!(place.info()["clean"], true);
    assert_eq!(place.bytes().len(), before.len());
    // For another process: the server ignores the descriptor and listens by itself.
    let other = "LISTEN_PID=1 LISTEN_FDS=1 LISTEN_FDNAMES=nbd";
    let line = "serve POOL --nbd unix:FOLDER/own.sock";
    let server = Running::start(&mut activated(&place, unix(), other, line));
    assert!(server.ready.ends_with("own.sock"), "{}", server.ready);
    server.stop();
}
