//! The files of a checkout, read once.
//!
//! Invariants: paths are relative to the root, with `/`, and sorted. Files without UTF-8, build products and git's
//! files are left out.

use std::path::Path;

use anyhow::{Context, Result};

/// A text file of the tree.
#[derive(Clone, Debug)]
pub(crate) struct File {
    /// Path from the root.
    pub(crate) path: String,
    /// The whole text.
    pub(crate) text: String,
}

impl File {
    /// Returns true if the file is a test, a benchmark, an example or a fuzz target: code outside of production
    /// builds.
    pub(crate) fn is_test_code(&self) -> bool {
        let named_tests = self.path.ends_with("tests.rs");
        let in_folder = ["tests", "benches", "examples", "fuzz"]
            .iter()
            .any(|folder| self.path.split('/').rev().skip(1).any(|part| part == *folder));
        named_tests || in_folder
    }

    /// Returns true if the file is Rust source.
    pub(crate) fn is_rust(&self) -> bool {
        Path::new(&self.path).extension().is_some_and(|extension| extension == "rs")
    }
}

/// The text files of a checkout, sorted by path.
#[derive(Debug)]
pub(crate) struct Tree {
    files: Vec<File>,
}

impl Tree {
    /// Reads the checkout at `root`.
    pub(crate) fn read(root: &Path) -> Result<Self> {
        let mut files = Vec::new();
        read_folder(root, "", &mut files)?;
        // Folders list their entries in no order, and findings must not depend on it.
        files.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(Self { files })
    }

    /// All files.
    pub(crate) fn files(&self) -> &[File] {
        &self.files
    }

    /// The Rust files.
    pub(crate) fn rust(&self) -> impl Iterator<Item = &File> {
        self.files.iter().filter(|file| file.is_rust())
    }

    /// The file at `path`.
    pub(crate) fn get(&self, path: &str) -> Option<&File> {
        self.files.iter().find(|file| file.path == path)
    }

    /// The files below `folder`, with `/` at its end.
    pub(crate) fn below(&self, folder: &str) -> impl Iterator<Item = &File> {
        self.files.iter().filter(move |file| file.path.starts_with(folder))
    }

    #[cfg(test)]
    pub(super) fn planted(files: &[(&str, &str)]) -> Self {
        let file = |&(path, text): &(&str, &str)| File { path: path.into(), text: text.into() };
        Self { files: files.iter().map(file).collect() }
    }
}

fn read_folder(folder: &Path, prefix: &str, files: &mut Vec<File>) -> Result<()> {
    let entries =
        std::fs::read_dir(folder).with_context(|| format!("cannot list {}", folder.display()))?;
    for entry in entries {
        let entry = entry.with_context(|| format!("cannot list {}", folder.display()))?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let path = format!("{prefix}{name}");
        let kind = entry.file_type().with_context(|| format!("cannot stat {path}"))?;
        // In a worktree of git's it is a file.
        if name == ".git" {
            continue;
        }
        if kind.is_dir() {
            // Build products contain copies of sources.
            if !matches!(name.as_str(), "target" | "__pycache__") {
                read_folder(&entry.path(), &format!("{path}/"), files)?;
            }
        } else if kind.is_file() {
            let bytes =
                std::fs::read(entry.path()).with_context(|| format!("cannot read {path}"))?;
            // Corpora and images are not text, and no rule reads them.
            files.extend(String::from_utf8(bytes).ok().map(|text| File { path, text }));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_code_is_told_by_folder_and_name() {
        let is_test = |path: &str| File { path: path.into(), text: String::new() }.is_test_code();
        assert!(is_test("crates/a/tests/it/main.rs"));
        assert!(is_test("crates/a/src/tests.rs"));
        assert!(is_test("crates/a/src/loom_tests.rs"));
        assert!(!is_test("bench/everbyte-bench/src/main.rs"));
        assert!(!is_test("crates/a/src/testkit.rs"));
        assert!(!is_test("crates/a/src/tests_of_strength/x.rs"));
        assert!(!is_test("xtask/src/main.rs"));
    }

    #[test]
    fn this_very_tree_can_be_read() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let tree = Tree::read(&root).unwrap();
        assert!(tree.get("xtask/src/tidy/tree.rs").is_some());
        assert!(tree.files().iter().all(|file| !file.path.starts_with("target/")));
    }
}
