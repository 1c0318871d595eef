//! Rules for the first line of a file and for the names of modules.
//!
//! Every Rust file opens with `//!`. A module's name states its subject. Names for any subject are refused.

use super::rules::RULES;
use super::{Finding, Tree};

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in tree.rust() {
        if !file.text.starts_with("//!") {
            let what = "does not open with `//!`: say what it owns and what it does not know";
            findings.push(Finding::new(&file.path, 1, what));
        }
        // Folders have names as well, so each part of the path counts.
        let stem = file.path.strip_suffix(".rs").unwrap_or(&file.path);
        if let Some(part) = stem.split('/').find(|part| says_nothing(part)) {
            let what = format!("the name `{part}` says nothing of what is inside");
            findings.push(Finding::new(&file.path, 0, what));
        }
        for (at, line) in file.text.lines().enumerate() {
            if let Some(name) = inline_module(line).filter(|name| says_nothing(name)) {
                let what = format!("the module name `{name}` says nothing of what is inside");
                findings.push(Finding::new(&file.path, at + 1, what));
            }
        }
    }
    findings
}

fn says_nothing(name: &str) -> bool {
    // Packages have hyphens where modules have underscores.
    let name = name.replace('-', "_");
    let rules = &RULES.names;
    rules.empty.contains(&name) || rules.empty_endings.iter().any(|ending| name.ends_with(ending))
}

/// The name in a line like `pub(crate) mod name {`.
fn inline_module(line: &str) -> Option<&str> {
    let mut words = line.split_whitespace().skip_while(|word| word.starts_with("pub"));
    (words.next() == Some("mod")).then(|| words.next())?.filter(|_| line.trim_end().ends_with('{'))
}

#[cfg(test)]
mod tests {
    use super::super::testkit::run;
    use super::*;

    #[test]
    fn file_without_head_is_found() {
        assert!(run(check, &[("a/src/lib.rs", "//! Head.\n")]).is_empty());
        assert_eq!(run(check, &[("a/src/lib.rs", "\n//! Head.\n")]).len(), 1);
        assert_eq!(run(check, &[("a/src/lib.rs", "// Head.\n")]).len(), 1);
        assert!(run(check, &[("a/run.sh", "no Rust")]).is_empty());
    }

    #[test]
    fn names_that_say_nothing_are_found() {
        for path in
            ["a/src/utils.rs", "a/src/common/mod.rs", "everbyte-base/src/lib.rs", "a/src/log_v2.rs"]
        {
            assert_eq!(run(check, &[(path, "//! Head.\n")]).len(), 1, "{path}");
        }
        assert!(run(check, &[("a/src/base_allocation.rs", "//! Head.\n")]).is_empty());
    }

    #[test]
    fn inline_modules_are_seen() {
        let text = "//! Head.\npub(crate) mod helpers {\n}\nmod fine {}\n";
        let found = run(check, &[("a/src/lib.rs", text)]);
        assert_eq!(
            found,
            ["a/src/lib.rs:2: the module name `helpers` says nothing of what is inside"]
        );
    }
}
