//! Pages of objects, which have numbers and sizes but no places.
//!
//! Page `k` of object `n` lies at page `n` of disk `0.k`, with the highest bits of `n` instead of
//! the 0: objects never share a page, and neighbouring numbers are neighbours. Pages from
//! [`NEAR_PAGES`] on lie in areas of 64 pages, at a place computed by SipHash from the object and
//! the area, on disks `far.d`. Among a million of these areas, two objects share one with a
//! probability of 2 in a million.
//!
//! Invariant: requests are made one at a time, so memory does not grow with the size of an object.

use std::hash::Hasher;

use rustc_hash::FxHashMap;
use siphasher::sip::SipHasher13;

use super::error::Problem;
use super::fields::number;
use super::files::FileNames;
use super::{Request, RequestOp};
use crate::access::PAGE_BYTES;

/// Bits of a page's number that fit into a place on a disk.
const PLACE_BITS: u32 = 50;
/// Pages of an object with separate disks.
const NEAR_PAGES: u64 = 32;
/// Pages of an area.
const AREA_PAGES: u64 = 64;
/// Most requests that one line stands for.
const TIMES_MAX: u64 = 1_000_000;
/// Most pages that these requests have: 1 GiB 512 times.
const PAGES_MAX: u64 = 1 << 27;

/// A request for an object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Object {
    pub(crate) time_ns: u64,
    pub(crate) op: RequestOp,
    pub(crate) id: u64,
    /// Bytes, more than 0.
    pub(crate) bytes: u64,
    /// The number of requests that it stands for.
    pub(crate) times: u64,
}

/// Parses the number of requests for an object that a line stands for.
///
/// # Errors
/// [`Problem::TooLarge`] above a million.
pub(crate) fn times(text: &str, field: &'static str) -> Result<u64, Problem> {
    let times = number(text, field)?;
    if times > TIMES_MAX {
        return Err(Problem::TooLarge { field, value: times.to_string() });
    }
    Ok(times)
}

/// Returns the number of an object that is known by a key.
pub(crate) fn id_of_key(key: &str) -> u64 {
    let mut hasher = SipHasher13::new();
    hasher.write(key.as_bytes());
    hasher.finish()
}

/// Makes requests of objects, page by page.
#[derive(Default)]
pub(crate) struct ObjectPages {
    object: Option<Object>,
    /// The next page.
    page: u64,
    /// Numbers of the disks that were met, by their first number and their second.
    disks: FxHashMap<(u64, Option<u64>), u32>,
}

impl ObjectPages {
    /// Begins with the pages of `object`. Those of the last one were all taken.
    ///
    /// # Errors
    /// [`Problem::TooLarge`]: it is requested too often for its size.
    pub(crate) fn begin(&mut self, object: Object) -> Result<(), Problem> {
        let pages = match object.op {
            // A deletion is one request, whatever the object's size.
            RequestOp::Trim => 1,
            _ => object.bytes.div_ceil(PAGE_BYTES.into()),
        };
        // One request is bounded by the limit for a request.
        if object.times > 1 && pages.saturating_mul(object.times) > PAGES_MAX {
            let value = format!("{} times {} bytes", object.times, object.bytes);
            return Err(Problem::TooLarge { field: "number of requests", value });
        }
        self.object = (object.times > 0).then_some(object);
        self.page = 0;
        Ok(())
    }

    /// Returns the request for the next page.
    ///
    /// # Errors
    /// [`Problem::TooMany`] disks.
    pub(crate) fn next(&mut self, files: &mut FileNames) -> Option<Result<Request, Problem>> {
        let object = self.object.as_mut()?;
        let Object { time_ns, op, id, bytes, .. } = *object;
        let (page, page_bytes) = (self.page, u64::from(PAGE_BYTES));
        let pages = bytes.div_ceil(page_bytes);
        // Before the request is made: the object may end with this page.
        self.page += 1;
        // A deletion is one request: it touches nothing.
        if self.page >= pages || op == RequestOp::Trim {
            self.page = 0;
            object.times -= 1;
            if object.times == 0 {
                self.object = None;
            }
        }
        let ((disk, place), near) = match page < NEAR_PAGES {
            true => (split(id), Some(page)),
            false => (split(far_place(id, page - NEAR_PAGES)), None),
        };
        let file = match self.disk(disk, near, files) {
            Ok(file) => file,
            Err(problem) => return Some(Err(problem)),
        };
        let len = (bytes - page * page_bytes).min(page_bytes);
        Some(Ok(Request { time_ns, op, file, offset: place * page_bytes, len }))
    }

    /// Returns the number of disk `disk.near`, or of `far.disk`.
    fn disk(
        &mut self,
        disk: u64,
        near: Option<u64>,
        files: &mut FileNames,
    ) -> Result<u32, Problem> {
        if let Some(&number) = self.disks.get(&(disk, near)) {
            return Ok(number);
        }
        let number = files.number(&match near {
            Some(near) => format!("{disk}.{near}"),
            None => format!("far.{disk}"),
        })?;
        self.disks.insert((disk, near), number);
        Ok(number)
    }
}

fn split(number: u64) -> (u64, u64) {
    (number >> PLACE_BITS, number & ((1 << PLACE_BITS) - 1))
}

/// Returns the place of a page that is not near.
fn far_place(id: u64, page: u64) -> u64 {
    let mut hasher = SipHasher13::new();
    // With fixed byte order and keys: the same trace gives the same places on every machine.
    hasher.write_u64(id.to_le());
    hasher.write_u64((page / AREA_PAGES).to_le());
    hasher.finish() / AREA_PAGES * AREA_PAGES + page % AREA_PAGES
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn pages(objects: &[(u64, u64, u64)]) -> Vec<(u32, u64, u64)> {
        let (mut pages, mut files) = (ObjectPages::default(), FileNames::default());
        let mut all = Vec::new();
        for &(id, bytes, times) in objects {
            let op = RequestOp::Read;
            pages.begin(Object { time_ns: 0, op, id, bytes, times }).unwrap();
            while let Some(request) = pages.next(&mut files) {
                let Request { file, offset, len, .. } = request.unwrap();
                all.push((file, offset, len));
            }
        }
        all
    }

    #[test]
    fn objects_share_no_page() {
        let large = 20 << 20;
        let ids = [0, 1, 2, u64::MAX, 1 << 50, 7 << 50];
        let all = pages(&ids.map(|id| (id, large, 1)));
        let places: HashSet<_> = all.iter().map(|&(file, offset, _)| (file, offset)).collect();
        assert_eq!((all.len(), places.len()), (6 * 5120, 6 * 5120));
        assert_eq!(all.iter().map(|page| page.2).sum::<u64>(), 6 * large);
    }

    #[test]
    fn objects_keep_their_pages_when_they_grow() {
        let (small, large) = (pages(&[(9, 300_000, 1)]), pages(&[(9, 900_000, 1)]));
        let places =
            |pages: &[(u32, u64, u64)]| -> Vec<_> { pages.iter().map(|page| page.1).collect() };
        assert_eq!(places(&small), places(&large)[..small.len()]);
    }

    #[test]
    fn requests_repeat_as_often_as_counted() {
        let all = pages(&[(5, 4097, 3), (6, 1, 0)]);
        assert_eq!(all.len(), 6);
        assert_eq!(all[..2], all[4..]);
    }

    #[test]
    fn numbers_of_keys_are_stable() {
        assert_ne!(id_of_key("a"), id_of_key("b"));
        // The reference value of SipHash-1-3 with the key 0 for no bytes.
        assert_eq!(id_of_key(""), 0xd1fb_a762_150c_532c);
    }
}
