//! File sets of Filebench: a tree of directories with gamma-distributed widths and depths, and files in its leaves.
//!
//! Invariants: equal personalities and numbers of files give equal sets. Names are numbers of eight digits, from 1 in each
//! directory. Follows `fileset_populate_subdir` of Filebench's `fileset.c`.

use rand::rngs::SmallRng;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use rand_distr::{Distribution, Gamma};

use super::personality::{Definition, GAMMA, Personality};
use crate::stats::as_f64;

/// A file of the set, present or absent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Entry {
    directory: u32,
    /// Its name in it.
    serial: u32,
    pub(crate) bytes: u32,
}

/// Directories and files of a workload.
pub(crate) struct FileSet {
    /// Paths, parents before their children.
    pub(crate) directories: Vec<String>,
    pub(crate) entries: Vec<Entry>,
    /// Entries of the files at the start, in the order of creation.
    pub(crate) present: Vec<u32>,
}

/// The making of a set.
struct Maker {
    rng: SmallRng,
    width: Gamma<f64>,
    depth: Gamma<f64>,
    definition: &'static Definition,
    files: usize,
    directories: Vec<String>,
    entries: Vec<Entry>,
}

/// The gamma distribution with Filebench's shape and this mean.
pub(crate) fn gamma(mean: f64) -> Gamma<f64> {
    Gamma::new(GAMMA, mean / GAMMA).expect("a positive shape and mean")
}

impl FileSet {
    /// The set of `personality` with so many files, at least two.
    pub(crate) fn new(personality: Personality, files: u32) -> Self {
        let definition = personality.definition();
        let width = f64::from(definition.directory_width);
        let mut maker = Maker {
            rng: SmallRng::seed_from_u64(0x6669_6c65),
            width: gamma(width),
            depth: gamma(f64::from(files.max(2)).ln() / width.ln()),
            definition,
            files: usize::try_from(files).expect("a count of files"),
            directories: Vec::new(),
            entries: Vec::new(),
        };
        maker.fill_root();
        let Maker { mut rng, directories, entries, .. } = maker;
        // Filebench makes files in random order, so that neighbours are not neighbours on the medium.
        let mut present: Vec<u32> = (0..files).collect();
        present.retain(|_| rng.random_range(0..100) < definition.present_percent);
        present.shuffle(&mut rng);
        Self { directories, entries, present }
    }

    /// Puts the path of an entry into `path`.
    pub(crate) fn path(&self, entry: usize, path: &mut String) {
        let entry = &self.entries[entry];
        path.clear();
        path.push_str(&self.directories[place(entry.directory)]);
        path.push('/');
        push_serial(path, entry.serial);
    }

    /// Mean size of the files, in bytes.
    pub(crate) fn mean_bytes(&self) -> f64 {
        let sum: u64 = self.entries.iter().map(|entry| u64::from(entry.bytes)).sum();
        as_f64(sum) / as_f64(self.entries.len().max(1) as u64)
    }
}

impl Maker {
    /// Fills the root, which has directories only, until there are enough files.
    fn fill_root(&mut self) {
        self.directories.push(String::from("bigfileset"));
        let mut serial = 1;
        while self.entries.len() < self.files {
            self.fill(0, serial, 1);
            serial += 1;
        }
    }

    /// Makes the directory `serial` of `parent` with its contents. `parent` is at `depth`.
    fn fill(&mut self, parent: u32, serial: u32, depth: u32) {
        let depth = depth + 1;
        let mut path = self.directories[place(parent)].clone();
        path.push('/');
        push_serial(&mut path, serial);
        let directory = u32::try_from(self.directories.len()).expect("fewer than files");
        self.directories.push(path);
        let depth_max = self.depth.sample(&mut self.rng).floor().max(1.0);
        let width = self.width.sample(&mut self.rng);
        let is_leaf = f64::from(depth) >= depth_max;
        let mut serial = 1;
        while f64::from(serial) < width + 1.0 && self.entries.len() < self.files {
            if is_leaf {
                let bytes = self.file_bytes();
                self.entries.push(Entry { directory, serial, bytes });
            } else {
                self.fill(directory, serial, depth);
            }
            serial += 1;
        }
    }

    fn file_bytes(&mut self) -> u32 {
        let Definition { file_bytes, is_gamma, .. } = *self.definition;
        if is_gamma { whole(gamma(file_bytes.into()).sample(&mut self.rng)) } else { file_bytes }
    }
}

/// The whole bytes of a positive size; the distribution's tail beyond 4 GiB has no weight.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the conversion saturates, and sizes are positive"
)]
fn whole(bytes: f64) -> u32 {
    bytes as u32
}

fn place(directory: u32) -> usize {
    usize::try_from(directory).expect("every directory is in memory")
}

/// Eight digits, at a fraction of the cost of formatting.
fn push_serial(path: &mut String, serial: u32) {
    let mut digits = [b'0'; 8];
    let mut rest = serial;
    for digit in digits.iter_mut().rev() {
        *digit = b'0' + u8::try_from(rest % 10).expect("a digit");
        rest /= 10;
    }
    path.extend(digits.map(char::from));
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn sizes_are_gamma_distributed_about_the_mean() {
        let set = FileSet::new(Personality::Fileserver, 40_000);
        let mean = f64::from(128 << 10);
        assert!((set.mean_bytes() / mean - 1.0).abs() < 0.02, "mean {}", set.mean_bytes());
        let deviations = set.entries.iter().map(|e| (f64::from(e.bytes) - mean).powi(2));
        let variance = deviations.sum::<f64>() / 40_000.0;
        // The variance of a gamma distribution is mean^2 / shape.
        assert!((variance / (mean * mean / GAMMA) - 1.0).abs() < 0.06);
        let constant = FileSet::new(Personality::Webproxy, 1000);
        assert!(constant.entries.iter().all(|entry| entry.bytes == 16 << 10));
    }

    #[test]
    fn directories_have_mean_width() {
        let set = FileSet::new(Personality::Fileserver, 40_000);
        let mut widths: BTreeMap<u32, u32> = BTreeMap::new();
        for entry in &set.entries {
            *widths.entry(entry.directory).or_default() += 1;
        }
        // Rounding up adds a half to the mean of 20.
        let mean = 40_000.0 / as_f64(widths.len() as u64);
        assert!((19.0..22.0).contains(&mean), "{mean} files a directory");
        let mut paths = set.directories.clone();
        paths.sort_unstable();
        paths.dedup();
        assert_eq!(paths.len(), set.directories.len());
        for (number, path) in set.directories.iter().enumerate().skip(1) {
            let (parent, name) = path.rsplit_once('/').unwrap();
            assert_eq!(name.len(), 8);
            assert!(set.directories[..number].iter().any(|other| other == parent));
        }
    }

    #[test]
    fn file_sets_repeat_and_match_filebench() {
        for personality in Personality::ALL {
            let (one, two) = (FileSet::new(personality, 5000), FileSet::new(personality, 5000));
            assert_eq!((&one.entries, &one.present), (&two.entries, &two.present));
            assert_eq!(one.entries.len(), 5000);
            let percent = as_f64(one.present.len() as u64) / 50.0;
            let expected = f64::from(personality.definition().present_percent);
            assert!((percent - expected).abs() < 3.0, "{personality:?}: {percent}%");
        }
    }

    #[test]
    fn paths_have_names_of_eight_digits() {
        let set = FileSet::new(Personality::Webproxy, 50);
        let mut path = String::new();
        set.path(11, &mut path);
        assert!(path.starts_with("bigfileset/00000001/"), "{path}");
        assert!(path.ends_with("/00000012"), "{path}");
    }
}
