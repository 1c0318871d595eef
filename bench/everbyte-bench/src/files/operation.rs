//! The measured operations and their names.

/// Bytes of a file that is created with its data.
pub(super) const WHOLE_BYTES: usize = 16 << 10;
/// Bytes of a read.
pub(super) const READ_BYTES: usize = 4 << 10;
/// The directory of the names.
pub(super) const DIRECTORY: &str = "names";
/// Name of the workload of appends under load.
pub(super) const BESIDE_LOAD: &str = "append 4K and fsync beside load";

/// An operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Operation {
    /// Makes an empty file, and does not open it.
    Create,
    /// Removes the only name of an empty file.
    Unlink,
    /// Gives a file another name in its directory.
    Rename,
    /// Sets permissions.
    Chmod,
    /// Reads the attributes at a path.
    Stat,
    /// Opens the file at a path.
    Open,
    /// Makes a file, writes 16 KiB and closes it.
    CreateWhole,
    /// Reads 4 KiB at random from an open file.
    Read,
}

impl Operation {
    pub(super) const ALL: [Self; 8] = [
        Self::Create,
        Self::Unlink,
        Self::Rename,
        Self::Chmod,
        Self::Stat,
        Self::Open,
        Self::CreateWhole,
        Self::Read,
    ];

    /// Its name in the results, in a directory of so many names.
    pub(super) fn title(self, names: usize) -> String {
        let what = match self {
            Self::Create => "create",
            Self::Unlink => "unlink",
            Self::Rename => "rename",
            Self::Chmod => "chmod",
            Self::Stat => "stat by path",
            Self::Open => "open by path",
            Self::CreateWhole => "create, write 16K, close",
            Self::Read => return "random read 4K".to_owned(),
        };
        format!("{what}, {names} names, depth 2")
    }

    /// Returns true if it changes metadata and nothing else.
    pub(super) fn changes_metadata(self) -> bool {
        matches!(self, Self::Create | Self::Unlink | Self::Rename | Self::Chmod)
    }

    /// Returns true if it changes anything.
    pub(super) fn writes(self) -> bool {
        self.changes_metadata() || self == Self::CreateWhole
    }
}

/// Paths in the directory.
pub(super) struct Paths {
    /// Paths of the permanent files, in another order than that of creation.
    pub(super) present: Vec<String>,
    /// New names for a batch of renames.
    pub(super) renamed: Vec<String>,
    /// Paths of created files.
    pub(super) made: Vec<String>,
}

impl Paths {
    /// Paths of `names` files, and for batches of `batch` changes.
    pub(super) fn new(names: usize, batch: usize) -> Self {
        // Prime to every number of names below it, so that all are met.
        const STEP: usize = 7919;
        let path = |letter: char, number: usize| format!("{DIRECTORY}/{letter}{number:05}");
        Self {
            present: (0..names).map(|n| path('f', n * STEP % names)).collect(),
            renamed: (0..batch).map(|n| path('r', n)).collect(),
            made: (0..batch).map(|n| path('m', n)).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn names_are_distinct_and_in_the_directory() {
        let paths = Paths::new(1000, 250);
        let all = [&paths.present, &paths.renamed, &paths.made];
        let distinct: HashSet<&String> = all.into_iter().flatten().collect();
        assert_eq!(distinct.len(), 1500);
        assert!(distinct.iter().all(|path| path.starts_with("names/")));
    }

    #[test]
    fn titles_are_unique() {
        let titles: HashSet<String> = Operation::ALL.map(|one| one.title(1000)).into();
        assert_eq!(titles.len(), Operation::ALL.len());
    }
}
