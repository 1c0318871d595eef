//! Open devices of this process: media of pools and backing devices of caches.
//!
//! Invariant: two backing devices never share bytes, and a backing device never shares bytes with
//! the medium of a pool, as far as the system reports their stacks. File locks and exclusive
//! opening of block devices exclude other processes from the same file and the same device. They do
//! not exclude them from a device above or below.

use std::sync::{Arc, Weak};

use everbyte_media::Stack;
use parking_lot::Mutex;

use super::error::BackingError;

static CLAIMS: Mutex<Vec<Weak<Claim>>> = Mutex::new(Vec::new());

/// A device in use, until this is dropped.
#[derive(Debug)]
pub struct Claim {
    stack: Arc<Stack>,
    name: String,
}

impl Claim {
    /// Claims the medium of a pool. Never fails.
    #[must_use]
    pub fn medium(stack: Arc<Stack>, path: &std::path::Path) -> Arc<Self> {
        Self::add(&mut CLAIMS.lock(), stack, format!("the pool {}", path.display()))
    }

    /// Claims the backing device `text`.
    pub(crate) fn backing(stack: Arc<Stack>, text: &str) -> Result<Arc<Self>, BackingError> {
        // Held from the check to the claim: of two devices with common bytes, one is refused.
        let mut claims = CLAIMS.lock();
        let mut others = claims.iter().filter_map(Weak::upgrade);
        if let Some(other) = others.find(|other| other.stack.shares_bytes_with(&stack)) {
            let (text, other) = (text.to_owned(), other.name.clone());
            return Err(BackingError::Shared { text, other });
        }
        drop(others);
        Ok(Self::add(&mut claims, stack, format!("the backing device {text}")))
    }

    fn add(claims: &mut Vec<Weak<Self>>, stack: Arc<Stack>, name: String) -> Arc<Self> {
        claims.retain(|claim| claim.strong_count() > 0);
        let claim = Arc::new(Self { stack, name });
        claims.push(Arc::downgrade(&claim));
        claim
    }
}
