//! Unwritable standard error: only its messages are lost.

use std::fs::File;
use std::process::Stdio;

use everbyte_device::Fua;
use rustix::process::Signal;

use crate::{Place, Running, everbyte};

/// The same holds for a server after the close of its terminal.
#[test]
fn hangup_with_closed_stderr_is_clean() {
    let place = Place::with_disk();
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let serve = "serve POOL --nbd unix:FOLDER/nbd.sock --checkpoint-interval 10m";
    let mut server = Running::start_with(everbyte().args(place.arguments(serve)), writer.into());
    place.client("disk").write(0, &[9; 4096], Fua::No).unwrap();
    assert!(server.signal(Signal::HUP).success());
    assert_eq!(place.info()["clean"], true);
    let server = place.serve("POOL", "");
    assert_eq!(place.client("disk").read(0, 4096).unwrap(), [9; 4096]);
    server.stop();
}

#[test]
fn full_stderr_keeps_exit_status() {
    let place = Place::with_disk();
    for (line, status) in [
        ("pool info FOLDER/none", 1),
        ("pool info", 2),
        ("volume create POOL more --size 2M --wipe", 2),
    ] {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let mut command = everbyte();
        command.args(place.arguments(line)).stdout(Stdio::null()).stderr(full);
        assert_eq!(command.status().unwrap().code(), Some(status), "{line}");
    }
}
