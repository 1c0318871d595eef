//! Examples: each has a row in the list, and the pages of crates begin with an example.

use super::rules::RULES;
use super::{Finding, Tree};

/// The list, and the way from it to the root.
const LIST: &str = "docs/examples.md";
const TO_ROOT: &str = "../";

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let list = tree.get(LIST).map(|file| file.text.as_str()).unwrap_or_default();
    let examples = tree.rust().filter(|file| is_example(&file.path));
    let unlisted = examples.filter(|file| !list.contains(&format!("]({TO_ROOT}{})", file.path)));
    let unlisted =
        unlisted.map(|file| Finding::new(&file.path, 0, format!("is missing in {LIST}")));
    let shown = RULES.pages.crates_with_examples.iter();
    let pages = shown.filter_map(|name| tree.get(&format!("crates/{name}/src/lib.rs")));
    let bare = pages.filter(|file| !begins_with_example(&file.text));
    let bare = bare.map(|file| Finding::new(&file.path, 1, "the crate's page has no example"));
    unlisted.chain(bare).collect()
}

/// Returns true if the lines of `//!` at the head of a file have compiled code.
fn begins_with_example(text: &str) -> bool {
    let head = text.lines().map_while(|line| line.strip_prefix("//!"));
    let fences = head.filter_map(|line| line.trim().strip_prefix("```"));
    // Every other one ends what the one before it began.
    fences.step_by(2).any(|kind| ["", "no_run"].contains(&kind))
}

/// Returns true for the files of cargo's examples.
fn is_example(path: &str) -> bool {
    match path.split('/').collect::<Vec<_>>().as_slice() {
        ["crates" | "bench", _, "examples", _] => true,
        ["crates" | "bench", _, "examples", _, file] => *file == "main.rs",
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::super::testkit::run;
    use super::*;

    #[test]
    fn examples_that_the_list_lacks_are_findings() {
        let found = run(
            check,
            &[
                ("docs/examples.md", "[a](../crates/c/examples/a.rs) crates/c/examples/b.rs"),
                ("crates/c/examples/a.rs", ""),
                ("crates/c/examples/b.rs", ""),
                ("crates/c/examples/large/main.rs", ""),
                ("crates/c/examples/large/part.rs", ""),
                ("crates/c/src/examples/no.rs", ""),
            ],
        );
        assert_eq!(
            found,
            [
                "crates/c/examples/b.rs: is missing in docs/examples.md",
                "crates/c/examples/large/main.rs: is missing in docs/examples.md",
            ]
        );
    }

    #[test]
    fn pages_of_crates_without_code_are_findings() {
        let example = "//! A crate.\n//!\n//! ```\n//! a::go();\n//! ```\n";
        let drawing = "//! A crate.\n//! ```text\n//! a -> b\n//! ```\n";
        let both = format!("{drawing}{}", example.replace("```\n//! a", "```no_run\n//! a"));
        let below = format!("//! A crate.\n\n{}", example.replace("//!", "///"));
        for (head, is_found) in
            [(example, false), (&*both, false), (drawing, true), (&*below, true), ("", true)]
        {
            for (name, is_shown) in [("everbyte-pool", true), ("everbyte-fs", false)] {
                let path = format!("crates/{name}/src/lib.rs");
                let found = run(check, &[(&path, head)]);
                assert_eq!(!found.is_empty(), is_found && is_shown, "{name}: {head}");
            }
        }
    }
}
