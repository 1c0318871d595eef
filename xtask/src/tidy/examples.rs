//! Examples that readers find: each stands in the list of them.

use super::{Finding, Tree};

/// The list, and the way from it to the root.
const LIST: &str = "docs/examples.md";
const TO_ROOT: &str = "../";

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let list = tree.get(LIST).map(|file| file.text.as_str()).unwrap_or_default();
    let examples = tree.rust().filter(|file| is_example(&file.path));
    let unlisted = examples.filter(|file| !list.contains(&format!("]({TO_ROOT}{})", file.path)));
    unlisted.map(|file| Finding::new(&file.path, 0, format!("is missing in {LIST}"))).collect()
}

/// Returns true for what cargo takes for an example of a crate.
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
}
