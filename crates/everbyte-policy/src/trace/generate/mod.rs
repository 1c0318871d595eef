//! Traces made up: the three workloads of the hybrid policy's paper, and plain patterns for tests.
//!
//! Of its traces the paper publishes the footprint, the mean write, and the origin; nothing else.
//! Our workloads meet those figures, footprint to the page and mean write within 1%, and otherwise
//! follow the documentation of the traced programs: see [`Workload`]. Each names **its
//! assumptions**; results on them compare policies on traffic of this kind, not on the paper's very
//! traces.
//!
//! Invariants: a seed and the options make the same requests on every machine and in every version
//! of the same major number; every page of every file is touched.

mod mobile;
mod patterns;
mod random;
mod script;
mod sqlite;
mod webserver;

#[cfg(test)]
mod tests;

use std::fmt;
use std::io;
use std::str::FromStr;

use super::Request;

/// A kind of traffic.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Workload {
    /// A browser on a tablet: 20,428 KB, 1,599 B a write. Assumed: `SQLite` databases in rollback
    /// mode for history, cookies and form data; a cache of page contents, written when they are
    /// loaded and read as a whole; libraries and fonts, only read; a log; preferences.
    Web,
    /// Video, gallery, social network and maps on the same tablet: 57,320 KB, 1,625 B a write.
    /// Assumed: phases of one program after the other; films and photographs read in order; map
    /// tiles and messages in databases; thumbnails.
    Mixed,
    /// Filebench's webserver: 39,540 KB, 3,035 B a write. Threads read ten whole files each and
    /// append to a common log. Assumed: equally likely files of 16 KB on average; a log that
    /// restarts when it is full; the page cache passes appends on page by page.
    Webserver,
    /// Pages chosen by Zipf's law, 70% reads, writes of 64 B to whole pages.
    Zipf,
    /// Pages read in order, each once.
    Scan,
    /// The same pages read in order over and over.
    Loop,
}

impl Workload {
    /// All workloads.
    pub const ALL: [Self; 6] =
        [Self::Web, Self::Mixed, Self::Webserver, Self::Zipf, Self::Scan, Self::Loop];

    /// Returns its name, as it is displayed and parsed.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Web => "web",
            Self::Mixed => "mixed",
            Self::Webserver => "webserver",
            Self::Zipf => "zipf",
            Self::Scan => "scan",
            Self::Loop => "loop",
        }
    }

    /// Returns the number of requests, unless options set another.
    #[must_use]
    pub fn requests(self) -> u64 {
        match self {
            Self::Web => 60_000,
            Self::Mixed => 150_000,
            Self::Webserver => 100_000,
            Self::Zipf | Self::Scan | Self::Loop => 1_000_000,
        }
    }
}

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Workload {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|workload| workload.name() == text);
        let names = || Self::ALL.map(Self::name).join(", ");
        found.ok_or_else(|| format!("{text:?} is not one of the workloads {}", names()))
    }
}

/// Seed and size of a made-up trace.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct GenerateOptions {
    /// Seed of chance.
    pub seed: u64,
    /// Fewest requests, flushes included; `None` for [`Workload::requests`]. The paper's workloads
    /// continue until all pages were touched, and then finish the visit that they are at.
    pub requests: Option<u64>,
    /// Pages of `zipf` and `loop`, at least 1. `scan` has one for each request, and the paper's
    /// workloads have their own number.
    pub pages: u32,
    /// The exponent of Zipf's law, at least 0.
    pub skew: f64,
}

impl Default for GenerateOptions {
    fn default() -> Self {
        Self { seed: 1, requests: None, pages: 65_536, skew: 1.0 }
    }
}

impl GenerateOptions {
    /// Checks the number of pages and the skew.
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidInput`] for zero pages or a skew below 0 or not a number: below 0,
    /// the weights of many pages have no finite sum.
    pub fn check(&self) -> io::Result<()> {
        if self.pages > 0 && self.skew.is_finite() && self.skew >= 0.0 {
            return Ok(());
        }
        let what = "at least one page and a skew that is a number of at least 0 are needed";
        Err(io::Error::new(io::ErrorKind::InvalidInput, what))
    }
}

/// Receives the requests of a generator, each with the name of its file.
pub type Sink<'a> = &'a mut dyn FnMut(&Request, &str) -> io::Result<()>;

/// Makes the requests of a workload, in the order of their times.
///
/// # Errors
/// Those of `sink` and of [`GenerateOptions::check`].
pub fn generate(workload: Workload, options: &GenerateOptions, sink: Sink<'_>) -> io::Result<()> {
    options.check()?;
    let requests = options.requests.unwrap_or_else(|| workload.requests());
    match workload {
        Workload::Web => mobile::web(options.seed, requests, sink),
        Workload::Mixed => mobile::mixed(options.seed, requests, sink),
        Workload::Webserver => webserver::webserver(options.seed, requests, sink),
        Workload::Zipf => patterns::zipf(options, requests, sink),
        Workload::Scan => patterns::in_order(options, requests, false, sink),
        Workload::Loop => patterns::in_order(options, requests, true, sink),
    }
}
