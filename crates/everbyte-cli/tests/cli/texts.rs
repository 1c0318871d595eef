//! Text of others on its way to terminals, logs and clients: it is escaped, bounded and names no paths
//! of the server to clients.

use std::fs;
use std::sync::Arc;

use everbyte_device::{FaultDevice, Faults, Fua, MemoryDevice};
use everbyte_nbd::{Address, Client, Export, ExportInfo, Exports, OpenError, Server};

use crate::{Outcome, Place, Running, everbyte};

/// Fails if a character could change a terminal's state or the order of the text, or forge a line.
#[track_caller]
fn check_plain(text: &str) {
    let is_special =
        |c: char| (c.is_control() && c != '\n') || ('\u{202a}'..='\u{202e}').contains(&c);
    assert!(!text.contains(is_special), "{text:?}");
    assert!(!text.lines().any(|line| line.starts_with("forged")), "{text}");
}

/// A name to set a terminal's colors, forge a line and reverse the direction of text.
const RUDE: &str = "b\u{1b}[31m\nforged\u{9b}1m\u{202e}x";

impl Place {
    /// A server with its log in a file.
    pub(crate) fn serve_logging(&self, arguments: &str) -> (Running, std::path::PathBuf) {
        let line = format!("serve POOL --nbd unix:FOLDER/nbd.sock {arguments}");
        let log = self.folder.path().join("log");
        let stderr = fs::File::create(&log).unwrap();
        (Running::start_with(everbyte().args(self.arguments(&line)), stderr.into()), log)
    }
}

#[test]
fn backing_names_are_escaped() {
    let place = Place::with_disk();
    let backing = place.folder.path().join(RUDE);
    fs::File::create(&backing).unwrap().set_len(1 << 20).unwrap();
    let mut create = everbyte();
    create.args(place.arguments("volume create POOL c --kind cache --scm 64K --backing"));
    let created = Outcome::of(create.arg(&backing));
    assert_eq!(created.status, 0, "{created:?}");
    check_plain(&created.out);
    for command in ["volume list POOL", "pool info POOL", "pool check POOL"] {
        let shown = place.run(command).out;
        check_plain(&shown);
    }
    let listed = place.run("volume list POOL --json");
    check_plain(&listed.out);
    assert_eq!(listed.json()["volumes"][0]["cache"]["backing"], backing.to_str().unwrap());
    fs::rename(&backing, place.folder.path().join("away")).unwrap();
    let (server, log) = place.serve_logging("");
    let address = Address::Unix(place.socket());
    let refused = Client::connect(&address, "c").err().unwrap().to_string();
    assert!(refused.contains("backing missing"), "{refused}");
    for part in ["/", "forged", "b\u{1b}"] {
        assert!(!refused.contains(&format!("available: {part}")), "{refused}");
    }
    assert!(!refused.contains("forged"), "{refused}");
    check_plain(&place.run("volume list POOL").good());
    assert!(Client::connect(&address, RUDE).is_err());
    server.stop();
    let log = fs::read_to_string(log).unwrap();
    check_plain(&log);
    assert!(log.contains("forged"), "{log}");
}

#[test]
fn paths_in_errors_are_escaped() {
    let place = Place::empty();
    for arguments in ["pool info", "pool check", "volume list", "sim info", "serve"] {
        let path = place.folder.path().join(RUDE);
        let mut command = everbyte();
        let failed = Outcome::of(command.args(arguments.split(' ')).arg(path));
        assert_ne!(failed.status, 0, "{arguments}");
        check_plain(&failed.err);
        assert!(failed.err.contains("forged"), "{failed:?}");
    }
    // A trace with bytes for the error to show.
    let trace = place.folder.path().join("trace");
    fs::write(&trace, "\u{1b}]0;title\u{7},\u{202e}\n\u{1b}[2J\n").unwrap();
    let failed = place.run("sim info FOLDER/trace");
    assert_ne!(failed.status, 0);
    check_plain(&failed.err);
}

/// One export with failing writes.
struct Failing(Arc<FaultDevice>);

impl Exports for Failing {
    fn list(&self) -> Vec<ExportInfo> {
        Vec::new()
    }

    fn open(&self, name: &str) -> Result<Export, OpenError> {
        Ok(Export::new(name, Arc::<FaultDevice>::clone(&self.0)))
    }
}

#[test]
fn failing_backing_logs_few_lines() {
    let place = Place::with_disk();
    let device = Arc::new(FaultDevice::new(Arc::new(MemoryDevice::new(8 << 20))));
    let address = Address::Unix(place.folder.path().join("below"));
    let below = Server::bind(&address, Arc::new(Failing(Arc::clone(&device)))).unwrap();
    let create = "volume create POOL c --kind cache --scm 2M --dram 256K --backing";
    place.run(&format!("{create} {}", address.uri("x"))).good();
    let (server, log) = place.serve_logging("");
    let mut client = place.client("c");
    device.fail(Faults { writes: true, ..Faults::NONE });
    for block in 0..1024 {
        // It may fail, once the cache is full of pages without a taker.
        let _refused = client.write(block << 12, &[7; 4096], Fua::No);
    }
    let _refused = client.flush();
    // Clients make the server log, for one cause.
    for number in 0..200 {
        assert!(Client::connect(&Address::Unix(place.socket()), &format!("x{number}")).is_err());
    }
    device.fail(Faults::NONE);
    server.stop();
    drop(below);
    let log = fs::read_to_string(log).unwrap();
    assert!(log.contains("the backing device failed"), "{log}");
    let counted = log.lines().filter(|line| line.contains("more warnings like this")).count();
    assert!(counted > 0, "{log}");
    assert!(log.lines().count() < 60, "{} lines: {log}", log.lines().count());
}

#[test]
fn taken_control_socket_has_alternative() {
    let place = Place::with_disk();
    let socket = everbyte_control::socket_path(&place.pool);
    fs::create_dir(&socket).unwrap();
    let serve = "serve POOL --nbd unix:FOLDER/nbd.sock";
    place.run(serve).failed(1, &["is a directory of user", "EVERBYTE_CONTROL_DIR"]);
    assert!(socket.is_dir());
    let sockets = place.folder.path().join("sockets");
    fs::create_dir(&sockets).unwrap();
    let with_dir = |arguments: &str| {
        let mut command = everbyte();
        command.env("EVERBYTE_CONTROL_DIR", &sockets).args(place.arguments(arguments));
        command
    };
    let server = Running::start(&mut with_dir(serve));
    assert_eq!(fs::read_dir(&sockets).unwrap().count(), 1);
    let created = Outcome::of(&mut with_dir("volume create POOL more --size 1M"));
    created.good();
    server.stop();
    assert_eq!(fs::read_dir(&sockets).unwrap().count(), 0, "the server removes its socket");
    fs::remove_dir(&socket).unwrap();
    assert!(place.run("volume list POOL").good().contains("more"));
}
