//! Open devices of this process: media of pools and backing devices of caches.
//!
//! Invariant: two backing devices never share bytes, and a backing device never shares bytes with
//! the medium of a pool, as far as the system reports their stacks. File locks and exclusive
//! opening of block devices exclude other processes from the same file and the same device. They do
//! not exclude them from a device above or below.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use everbyte_media::Stack;
use parking_lot::Mutex;

use super::error::BackingError;

static CLAIMS: Mutex<Vec<Entry>> = Mutex::new(Vec::new());
static NEXT: AtomicU64 = AtomicU64::new(0);

struct Entry {
    number: u64,
    stack: Arc<Stack>,
    name: String,
}

/// A device in use, until this is dropped.
#[derive(Debug)]
pub struct Claim {
    number: u64,
}

impl Claim {
    /// Claims the medium of a pool. Never fails.
    #[must_use]
    pub fn medium(stack: Arc<Stack>, path: &std::path::Path) -> Self {
        let name = format!("the pool {}", path.display());
        add(&mut CLAIMS.lock(), stack, name)
    }

    /// Claims the backing device `text`.
    pub(crate) fn backing(stack: Arc<Stack>, text: &str) -> Result<Self, BackingError> {
        let mut claims = CLAIMS.lock();
        if let Some(other) = claims.iter().find(|claim| claim.stack.shares_bytes_with(&stack)) {
            let (text, other) = (text.to_owned(), other.name.clone());
            return Err(BackingError::Shared { text, other });
        }
        Ok(add(&mut claims, stack, format!("the backing device {text}")))
    }
}

fn add(claims: &mut Vec<Entry>, stack: Arc<Stack>, name: String) -> Claim {
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    claims.push(Entry { number, stack, name });
    Claim { number }
}

impl Drop for Claim {
    fn drop(&mut self) {
        CLAIMS.lock().retain(|claim| claim.number != self.number);
    }
}
