//! Scrubs of a served pool during renames and deletions of its volumes.

use std::sync::Arc;

use everbyte::Pool;
use everbyte_control::{ControlServer, Handler, Request, RequestError, Response};
use everbyte_device::Fua;
use everbyte_server::{OpenPool, Options};
use parking_lot::Mutex;
use serde_json::Value;

use crate::Place;

const DISK_BLOCKS: u64 = 100;
const OTHER_BLOCKS: u64 = 7;

/// A server. It makes changes before it reads the first part of a volume.
struct Changing {
    pool: Arc<OpenPool>,
    changes: Mutex<Vec<Request>>,
}

impl Handler for Changing {
    fn handle(&self, request: Request) -> Result<Response, RequestError> {
        if matches!(request, Request::Scrub { volume: Some(_), .. }) {
            let changes = std::mem::take(&mut *self.changes.lock());
            for change in changes {
                self.pool.handle(change)?;
            }
        }
        self.pool.handle(request)
    }
}

/// A pool with the volumes `disk` and `other`. Their blocks have checksums.
fn place() -> Place {
    let place = Place::empty();
    place.run("pool create POOL --size 32M").good();
    for name in ["disk", "other"] {
        place.run(&format!("volume create POOL {name} --size 2M --checksum crc32c")).good();
    }
    let server = place.serve("POOL", "");
    for (name, blocks) in [("disk", DISK_BLOCKS), ("other", OTHER_BLOCKS)] {
        let mut client = place.client(name);
        for block in 0..blocks {
            client.write(block * 4096, &[7; 4096], Fua::No).unwrap();
        }
    }
    server.stop();
    place
}

/// Results of a scrub. Its server makes these changes once the scrub has begun.
fn scrubbed_beside(changes: Vec<Request>) -> Value {
    let place = place();
    let pool = Pool::open(&place.pool).unwrap();
    let pool = Arc::new(OpenPool::new(pool, Options::default()));
    let changing = Changing { pool: Arc::clone(&pool), changes: Mutex::new(changes) };
    let server = ControlServer::start(&place.pool, None, Arc::new(changing)).unwrap();
    let scrubbed = place.run("pool scrub POOL --json").json();
    drop(server);
    pool.close().unwrap();
    scrubbed
}

fn rename(name: &str, new_name: &str) -> Request {
    Request::VolumeRename { name: name.to_owned(), new_name: new_name.to_owned(), force: false }
}

#[test]
fn scrub_survives_volume_rename() {
    let none = Vec::new();
    let one = vec![rename("disk", "moved")];
    // Each of the two listed names belongs to another volume, or to none.
    let both = vec![rename("disk", "moved"), rename("other", "disk")];
    for changes in [none, one, both] {
        let scrubbed = scrubbed_beside(changes);
        assert_eq!(scrubbed["verified_blocks"], DISK_BLOCKS + OTHER_BLOCKS, "{scrubbed}");
        let volumes = (&scrubbed["volumes"], &scrubbed["deleted_volumes"]);
        assert_eq!(volumes, (&2.into(), &0.into()), "{scrubbed}");
        assert_eq!(scrubbed["clean"], true);
    }
}

#[test]
fn scrub_skips_deleted_volumes() {
    let delete = Request::VolumeDelete { name: "disk".to_owned(), force: true };
    for changes in [vec![delete.clone()], vec![delete, rename("other", "disk")]] {
        let scrubbed = scrubbed_beside(changes);
        assert_eq!(scrubbed["verified_blocks"], OTHER_BLOCKS, "{scrubbed}");
        let volumes = (&scrubbed["volumes"], &scrubbed["deleted_volumes"]);
        assert_eq!(volumes, (&1.into(), &1.into()), "{scrubbed}");
        assert_eq!(scrubbed["clean"], true);
    }
}
