//! Backing devices on each other, on the pool, or with write protection.

use std::fs::File;
use std::path::Path;

use everbyte_device::Fua;
use everbyte_testkit::not_run;

use crate::Place;
use crate::rights::Loop;

const CREATE: &str = "--kind cache --scm 1M --dram 256K --backing";

fn image(place: &Place, name: &str) -> std::path::PathBuf {
    let path = place.folder.path().join(name);
    File::create(&path).unwrap().set_len(8 << 20).unwrap();
    path
}

fn over(image: &Path) -> Option<Loop> {
    let device = Loop::over(image);
    if device.is_none() {
        not_run("there are no loop devices here");
    }
    device
}

#[test]
fn caches_of_stacked_loop_devices_are_refused() {
    let place = Place::with_disk();
    let image = image(&place, "image");
    let Some(lower) = over(&image) else { return };
    let Some(upper) = over(Path::new(lower.path())) else { return };
    let devices = [image.to_str().unwrap(), lower.path(), upper.path()];
    for first in devices {
        place.run(&format!("volume create POOL a {CREATE} {first}")).good();
        for second in devices {
            let create = format!("volume create POOL b {CREATE} {second}");
            place.run(&create).failed(1, &["is the backing device of cache a"]);
        }
        let server = place.serve("POOL", "");
        for second in devices {
            let create = format!("volume create POOL b {CREATE} {second}");
            place.run(&create).failed(1, &["is the backing device of cache a"]);
        }
        server.stop();
        place.run("volume delete POOL a").good();
    }
}

#[test]
fn backing_devices_over_the_pool_are_refused() {
    let place = Place::with_disk();
    let Some(own) = over(&place.pool) else { return };
    let words = ["shares bytes with the pool itself"];
    place.run(&format!("volume create POOL a {CREATE} {}", own.path())).failed(1, &words);
    // The other way round: a pool on a loop device, and a cache of its file.
    let image = image(&place, "image");
    let Some(device) = over(&image) else { return };
    let (pool, file) = (device.path(), image.display());
    assert_eq!(place.run(&format!("pool create {pool} --force")).status, 0);
    place.run(&format!("volume create {pool} a {CREATE} {file}")).failed(1, &words);
    let server = place.serve(pool, "");
    place.run(&format!("volume create {pool} a {CREATE} {file}")).failed(1, &words);
    server.stop();
}

#[test]
fn cache_of_read_only_backing_is_read_only() {
    let place = Place::empty();
    place.run("pool create POOL --size 32M").good();
    let image = image(&place, "image");
    let Some(lower) = over(&image) else { return };
    let Some(upper) = over(Path::new(lower.path())) else { return };
    let is_read_only = || {
        let server = place.serve("POOL", "");
        let mut client = place.client("c");
        let is_read_only = client.is_read_only();
        assert_eq!(client.write(0, &[7; 512], Fua::Yes).is_err(), is_read_only);
        client.flush().unwrap();
        client.disconnect().unwrap();
        let listed = place.run("volume list POOL --json").json();
        assert_eq!(listed["volumes"][0]["read_only"].is_string(), is_read_only, "{listed}");
        server.stop();
        is_read_only
    };
    for (device, protected) in [(&lower, &lower), (&upper, &lower)] {
        protected.set("--setro");
        let create = format!("volume create POOL c {CREATE} {}", device.path());
        let created = place.run(&create);
        assert_eq!(created.status, 0, "{created:?}");
        assert!(created.err.contains("write-protected"), "{created:?}");
        assert!(is_read_only());
        // It is asked again at each start.
        protected.set("--setrw");
        assert!(!is_read_only());
        protected.set("--setro");
        assert!(is_read_only());
        place.run("volume detach POOL c").failed(1, &[]);
        protected.set("--setrw");
        place.run("volume detach POOL c").good();
    }
}
