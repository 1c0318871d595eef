//! The descriptors of an open volume: one, and another after each renaming.
//!
//! Invariant: lent descriptors stay valid: a user keeps an old name after the volume gets another.

use std::sync::OnceLock;

use crate::format::Descriptor;

/// Descriptors with different names, the latest last.
pub(crate) struct Names {
    descriptor: Descriptor,
    next: OnceLock<Box<Self>>,
}

impl Names {
    pub(crate) fn new(descriptor: Descriptor) -> Self {
        Self { descriptor, next: OnceLock::new() }
    }

    fn last(&self) -> &Self {
        let mut last = self;
        while let Some(next) = last.next.get() {
            last = next;
        }
        last
    }

    pub(crate) fn latest(&self) -> &Descriptor {
        &self.last().descriptor
    }

    /// Adds a descriptor. The caller excludes concurrent additions.
    pub(crate) fn add(&self, descriptor: Descriptor) {
        let added = self.last().next.set(Box::new(Self::new(descriptor)));
        assert!(added.is_ok(), "two threads renamed a volume at once");
    }
}

impl Drop for Names {
    /// Drops them one by one: a long list that drops itself would need a stack as long.
    fn drop(&mut self) {
        let mut rest = self.next.take();
        while let Some(mut names) = rest {
            rest = names.next.take();
        }
    }
}
