//! Runs of swap volumes, lent over the control socket: to one program at a time, under any kill.

use std::collections::BTreeSet;
use std::thread::sleep;
use std::time::{Duration, Instant};

use everbyte_control::{Borrowed, ControlClient, ControlError};

use crate::Place;

const RUN: u64 = 2 << 20;

/// A pool with a swap volume `s` of 4 runs.
fn place() -> Place {
    let place = Place::empty();
    place.run("pool create POOL --size 32M").good();
    place.run("volume create POOL s --kind swap --size 8M").good();
    place
}

fn borrow(place: &Place, runs: u64) -> Result<Borrowed, ControlError> {
    ControlClient::connect(&place.pool).unwrap().borrow_runs("s", runs * RUN)
}

fn runs_of(lease: &Borrowed) -> BTreeSet<u64> {
    lease.ranges.iter().flat_map(|range| range.start / RUN..range.end / RUN).collect()
}

/// Waits until no more than these runs are lent. If another test is just starting a program, the
/// program has the descriptors of this process for a moment, and with them its leases.
fn wait_until_lent(place: &Place, runs: u64) {
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        let listed = place.run("volume list POOL --json").json();
        let lent = listed["volumes"][0]["swap"]["lent_bytes"].as_u64().unwrap();
        if lent == runs * RUN {
            return;
        }
        assert!(Instant::now() < deadline, "{lent} bytes are still lent");
        sleep(Duration::from_millis(10));
    }
}

#[test]
fn resize_of_used_swap_is_refused() {
    let place = place();
    let server = place.serve("POOL", "");
    let client = place.client("s");
    let refused = place.run("volume resize POOL s --size 4M");
    assert!(refused.status == 1 && refused.err.contains("--force"), "{refused:?}");
    assert!(refused.err.contains("1 client has volume s open"), "{refused:?}");
    client.disconnect().unwrap();
    server.stop();
    place.run("volume resize POOL s --size 4M").good();
}

#[test]
fn runs_are_freed_with_last_descriptor() {
    let place = place();
    let server = place.serve("POOL", "");
    let first = borrow(&place, 1).unwrap();
    let rest = borrow(&place, 9).unwrap();
    assert_eq!((runs_of(&first).len(), runs_of(&rest).len()), (1, 3));
    assert!(runs_of(&first).is_disjoint(&runs_of(&rest)));
    let refused = borrow(&place, 1).unwrap_err().to_string();
    let pid = std::process::id();
    assert!(refused.contains(&format!("are lent, to process {pid}")), "{refused}");
    let listed = place.run("volume list POOL --json").json();
    let swap = &listed["volumes"][0]["swap"];
    assert_eq!((&swap["lent_bytes"], &swap["pids"][0]), (&(4 * RUN).into(), &pid.into()));
    place.run("volume delete POOL s --force").failed(1, &[&pid.to_string()]);
    place.run("volume resize POOL s --size 4M").failed(1, &[&pid.to_string()]);
    // A program asks for more by the name.
    place.run("volume rename POOL s t --force").failed(1, &["volume s is lent to programs"]);
    let freed = runs_of(&first);
    drop(first);
    wait_until_lent(&place, 3);
    assert_eq!(runs_of(&borrow(&place, 4).unwrap()), freed);
    drop(rest);
    wait_until_lent(&place, 0);
    place.run("volume rename POOL s t").good();
    place.run("volume resize POOL t --size 4M").good();
    server.stop();
    assert_eq!(place.run("pool check POOL --json").json()["clean"], true);
}

#[test]
fn lease_outlives_its_server() {
    let place = place();
    let mut held = Vec::new();
    for round in 0..4 {
        let server = place.serve("POOL", "");
        held.push(borrow(&place, 1).unwrap());
        if round == 3 {
            server.stop();
        } else {
            server.kill();
        }
    }
    let lent: BTreeSet<u64> = held.iter().flat_map(runs_of).collect();
    assert_eq!(lent.len(), 4, "a run was lent twice: {held:?}");
    let server = place.serve("POOL", "");
    assert!(borrow(&place, 1).is_err());
    drop(held);
    wait_until_lent(&place, 0);
    assert_eq!(runs_of(&borrow(&place, 9).unwrap()), lent);
    server.stop();
    assert_eq!(place.run("pool check POOL --json").json()["clean"], true);
}

#[test]
fn impossible_lease_is_explained() {
    let place = place();
    place.run("volume create POOL disk --size 2M").good();
    let server = place.serve("POOL", "");
    let mut client = ControlClient::connect(&place.pool).unwrap();
    for (volume, words) in [("none", "none"), ("disk", "no swap volume")] {
        let refused = client.borrow_runs(volume, RUN).unwrap_err().to_string();
        assert!(refused.contains(words), "{refused}");
    }
    let request = || everbyte_control::Request::Lend { volume: "s".to_owned(), bytes: RUN };
    let bare = client.call(request()).unwrap_err().to_string();
    assert!(bare.contains("no socket for the lease"), "{bare}");
    let null = std::fs::File::open("/dev/null").unwrap();
    let wrong = client.call_attached(request(), &[], Some(std::os::fd::AsFd::as_fd(&null)));
    let wrong = wrong.unwrap_err().to_string();
    assert!(wrong.contains("no socket came"), "{wrong}");
    assert_eq!(runs_of(&client.borrow_runs("s", u64::MAX).unwrap()).len(), 4);
    server.stop();
}
