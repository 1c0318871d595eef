//! Places of the connections to a control socket: their number, and the choice of the next one.
//!
//! Invariants: at most [`PLACES_MAX`] concurrent connections. A user other than root has at most
//! half of them. A connection with a running request keeps its place. Without a free place, a new
//! connection replaces one that waits for its client: first one without any request so far, then
//! the one with the longest rest.

use std::io;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::credentials::Peer;

/// Most concurrent connections.
pub(crate) const PLACES_MAX: usize = 128;

/// The places of a server.
#[derive(Default)]
pub(crate) struct Places(Mutex<Table>);

#[derive(Default)]
struct Table {
    /// Counts changes, to order them.
    clock: u64,
    taken: Vec<Entry>,
}

struct Entry {
    id: u64,
    uid: u32,
    stream: UnixStream,
    /// Time of the last change: the arrival, or the end of the last request.
    since: u64,
    has_asked: bool,
    is_at_work: bool,
    /// True if another connection has the place, and this one is about to end.
    is_replaced: bool,
}

/// The place of a connection, until it is dropped.
pub(crate) struct Place {
    places: Arc<Places>,
    id: u64,
}

/// A running request. Dropping it ends it.
pub(crate) struct AtWork<'a>(&'a Place);

impl Places {
    /// Takes a place for a connection of `peer`. `None` means that running requests have all
    /// places, or the user has reached the limit of one user.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn take(
        places: &Arc<Self>,
        peer: &Peer,
        stream: &UnixStream,
    ) -> io::Result<Option<Place>> {
        let mut table = places.table();
        let held = table.taken.iter().filter(|entry| !entry.is_replaced);
        // A replaced connection has lost its place, though its thread has not ended yet.
        let own = held.clone().filter(|entry| entry.uid == peer.uid).count();
        // Root is exempt: an administrator must reach a server that a user has filled.
        let is_own_share_full = peer.uid != 0 && own >= PLACES_MAX / 2;
        // The connections that are about to end have threads, too.
        let has_threads = table.taken.len() < 2 * PLACES_MAX;
        if (is_own_share_full || held.count() >= PLACES_MAX)
            // A user at the limit replaces an own connection, never another user's.
            && !(has_threads && table.replace_one(is_own_share_full.then_some(peer.uid)))
        {
            return Ok(None);
        }
        // A second descriptor lets another thread end the connection, while its own thread waits in
        // a read.
        let stream = stream.try_clone()?;
        table.clock += 1;
        let id = table.clock;
        table.taken.push(Entry {
            id,
            uid: peer.uid,
            stream,
            since: id,
            has_asked: false,
            is_at_work: false,
            is_replaced: false,
        });
        Ok(Some(Place { places: Arc::clone(places), id }))
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        // Each change of the table is complete at any panic, and a poisoned lock would end the
        // server's service.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, id: u64, change: impl FnOnce(&mut Entry)) {
        let mut table = self.table();
        table.clock += 1;
        let now = table.clock;
        if let Some(entry) = table.taken.iter_mut().find(|entry| entry.id == id) {
            entry.since = now;
            change(entry);
        }
    }
}

impl Table {
    /// Ends a connection that waits for its client, of `uid` or of any user. Returns false if no
    /// connection waits.
    fn replace_one(&mut self, uid: Option<u32>) -> bool {
        let waiting = self.taken.iter_mut().filter(|entry| {
            !entry.is_at_work && !entry.is_replaced && uid.is_none_or(|uid| entry.uid == uid)
        });
        // Connections without any request first: they are the cheapest to flood a server with.
        let Some(entry) = waiting.min_by_key(|entry| (entry.has_asked, entry.since)) else {
            return false;
        };
        entry.is_replaced = true;
        // Its thread ends now. The client may have left already.
        let _it_has_left = entry.stream.shutdown(Shutdown::Both);
        true
    }
}

impl Place {
    /// Notes a running request.
    pub(crate) fn work(&self) -> AtWork<'_> {
        self.places.change(self.id, |entry| {
            entry.has_asked = true;
            entry.is_at_work = true;
        });
        AtWork(self)
    }
}

impl Drop for AtWork<'_> {
    fn drop(&mut self) {
        // Also after a panic of the request: the place would otherwise be irreplaceable.
        self.0.places.change(self.0.id, |entry| entry.is_at_work = false);
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.places.table().taken.retain(|entry| entry.id != self.id);
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    fn take(places: &Arc<Places>, uid: u32) -> Option<(Place, UnixStream)> {
        let (ours, theirs) = UnixStream::pair().unwrap();
        theirs.set_nonblocking(true).unwrap();
        let place = Places::take(places, &Peer { pid: 1, uid }, &ours).unwrap()?;
        Some((place, theirs))
    }

    fn has_ended(client: &UnixStream) -> bool {
        let mut client = client;
        matches!(client.read(&mut [0]), Ok(0))
    }

    #[test]
    fn newcomer_replaces_silent_peer() {
        let places = Arc::default();
        let (mut taken, mut working) = (Vec::new(), Vec::new());
        for _ in 0..PLACES_MAX {
            taken.push(take(&places, 0).unwrap());
        }
        // The first is at work, and the second has asked something once.
        working.push(taken[0].0.work());
        drop(taken[1].0.work());
        let new = take(&places, 0).unwrap();
        assert!(has_ended(&taken[2].1), "the oldest one that has asked nothing");
        assert!(!has_ended(&taken[0].1) && !has_ended(&taken[1].1) && !has_ended(&new.1));
        working.extend(taken[3..].iter().map(|(place, _)| place.work()));
        let _new = new.0.work();
        let second = take(&places, 0).unwrap();
        assert!(has_ended(&taken[1].1), "the one that rests");
        let _second = second.0.work();
        assert!(take(&places, 0).is_none(), "all others are at work");
    }

    #[test]
    fn one_user_leaves_places_to_others() {
        let places = Arc::default();
        let own: Vec<_> = (0..PLACES_MAX).map(|_| take(&places, 1000).unwrap()).collect();
        let ended = own.iter().filter(|(_, client)| has_ended(client)).count();
        assert_eq!(ended, PLACES_MAX / 2, "a user replaces its own connections");
        let _at_work: Vec<_> = own.iter().map(|(place, _)| place.work()).collect();
        assert!(take(&places, 1000).is_none());
        assert!(take(&places, 0).is_some() && take(&places, 1001).is_some());
    }
}
