//! Planted bugs: mistakes in the text of storage code that its tests switch on, to see them caught.
//!
//! A crate lists its mistakes as an enum of its own and asks [`planted`] where one would be. A test
//! plants one for its thread. Knows no mistakes. Only the feature `planted-bugs`, which tests
//! alone ask for, makes it possible: without it `planted` is `false` as it compiles, and nothing of a
//! mistake remains.
//!
//! A flush or a fence that is merely missing needs no text: `everbyte-crash` leaves it out.
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
