//! Pages of results: one HTML file with charts, tables and a footer about its origin.
//!
//! Invariants: a page needs no network, no script and no second file. All text from callers is
//! escaped, so a hostile file name stays text. A page follows the reader's light or dark mode.
//! Charts adapt to the width of the window, and their letters keep their size.
//!
//! Knows nothing of simulations and benchmarks.
//!
//! ```
//! use everbyte_report::{HorizontalAxis, Chart, Page, Point, Scale, Series, Shape};
//!
//! let point = |x: f64, y: f64| Point { x, y, words: String::new() };
//! let chart = Chart {
//!     title: "Hit ratio".to_owned(),
//!     across: HorizontalAxis::Numbers("cache, MiB".to_owned()),
//!     up: "hits, %".to_owned(),
//!     scale: Scale::Linear,
//!     shape: Shape::Lines,
//!     series: vec![Series { name: "lru".to_owned(), look: 0, points: vec![point(1.0, 40.0)] }],
//! };
//! let mut page = Page::new("Caches");
//! page.chart(&chart);
//! assert!(page.finish().contains("<title>lru"));
//! ```

#![forbid(unsafe_code)]

mod axis;
mod chart;
mod date;
mod escape;
mod look;
mod page;

pub use axis::{Scale, short};
pub use chart::{Chart, HorizontalAxis, Point, Series, Shape};
pub use date::utc;
pub use escape::escaped;
pub use page::{Cell, Page, Provenance, Table};
