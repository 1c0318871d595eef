//! Swap volumes: made, resized, exported and deleted; nothing of them is promised to last.

use everbyte_device::{Fua, Hole};

use crate::Place;

#[test]
fn a_swap_volume_is_made_exported_and_keeps_nothing() {
    let place = Place::with_disk();
    place.run("volume create POOL more --kind swap --size 3M").failed(1, &["multiple of 2 MiB"]);
    place.run("volume create POOL more --kind swap --size 1G").failed(1, &["runs of 2 MiB"]);
    place.run("volume create POOL more --size 2M --wipe").failed(2, &["--kind swap"]);
    place.run("volume create POOL more --kind swap --size 4M --wipe").good();
    let listed = place.run("volume list POOL --json").json();
    let made = listed["volumes"]
        .as_array()
        .unwrap()
        .iter()
        .find(|volume| volume["name"] == "more")
        .unwrap();
    assert_eq!((&made["kind"], &made["size_bytes"]), (&"swap".into(), &(4 << 20).into()));
    assert_eq!(made["log_bytes"], 0);
    place.run("volume resize POOL more --size 6M").good();
    let server = place.serve("POOL", "");
    let mut client = place.client("more");
    assert_eq!(client.size_bytes(), 6 << 20);
    client.write(1 << 20, &[7; 8192], Fua::No).unwrap();
    assert_eq!(client.read((1 << 20) + 4096, 4096).unwrap(), [7; 4096]);
    let refused = client.write(0, &[1; 512], Fua::Yes).unwrap_err().to_string();
    assert!(refused.contains("durable"), "{refused}");
    assert!(client.flush().is_err(), "it would be a false yes");
    client.write_zeroes(1 << 20, 4096, Hole::Allowed, false, Fua::No).unwrap();
    assert_eq!(client.read(1 << 20, 4096).unwrap(), [0; 4096]);
    place.run("volume resize POOL more --size 2M").failed(1, &["1 client has"]);
    place.run("volume delete POOL more").failed(1, &["1 client has"]);
    drop(client);
    server.kill();
    let server = place.serve("POOL", "");
    assert_eq!(place.client("more").read((1 << 20) + 4096, 4096).unwrap(), [0; 4096]);
    assert_eq!(place.run("pool check POOL --json").json()["clean"], true);
    server.stop();
    place.run("volume resize POOL more --size 2M").good();
    place.run("volume delete POOL more").good();
    assert_eq!(place.run("pool check POOL --json").json()["clean"], true);
}
