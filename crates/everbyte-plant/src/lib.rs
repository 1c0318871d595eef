//! Planted bugs: mistakes in storage code. A test enables one and must detect it.
//!
//! A crate lists its mistakes in an enum and calls [`planted`] at the place of each. A test
//! plants one for its thread. This crate knows no mistakes. Only tests set the feature `planted-bugs`.
//! Without the feature `planted` is the constant `false`, and the compiler removes the mistakes.
//!
//! Missing flushes and fences need no code here: `everbyte-crash` omits them.
//!
//! # Example
//! ```
//! use everbyte_plant::{plant, planted};
//!
//! #[derive(Clone, Copy, PartialEq, Debug)]
//! enum Bug {
//!     /// The last element is forgotten.
//!     LastForgotten,
//! }
//!
//! fn sum(numbers: &[u64]) -> u64 {
//!     let len = numbers.len() - usize::from(planted(Bug::LastForgotten));
//!     numbers[..len].iter().sum()
//! }
//!
//! assert_eq!(sum(&[1, 2, 3]), 6);
//! let bug = plant(Bug::LastForgotten);
//! assert_eq!(sum(&[1, 2, 3]), 3);
//! drop(bug);
//! assert_eq!(sum(&[1, 2, 3]), 6);
//! ```

#![forbid(unsafe_code)]

#[cfg(feature = "planted-bugs")]
mod active;

#[cfg(feature = "planted-bugs")]
pub use active::{Planted, plant, planted};

/// Returns true if this thread has `bug` planted: never, in this build.
#[cfg(not(feature = "planted-bugs"))]
#[inline(always)]
#[must_use]
pub const fn planted<B: Copy + PartialEq + 'static>(_bug: B) -> bool {
    false
}
