//! Documentation stands at the item and not at the head of a module.
//!
//! A reference to the head of a private module leads nowhere: rustdoc does not show it. The contract stands at its
//! item.

use super::{Finding, Tree};

/// References to the head of a module, in small letters.
const POINTERS: [&str; 4] = [
    concat!("module's", " head"),
    concat!("head of", " the module"),
    concat!("head of", " this module"),
    concat!("module's", " documentation"),
];

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in tree.rust() {
        let lines: Vec<&str> = file.text.lines().collect();
        for (at, line) in lines.iter().enumerate() {
            let Some(doc) = doc_comment(line) else { continue };
            // A sentence may go on in the next line.
            let next = lines.get(at + 1).and_then(|next| doc_comment(next)).unwrap_or("");
            let both = format!("{} {}", doc.trim(), next.trim()).to_lowercase();
            let starts_here = |pointer: &&&str| {
                both.find(**pointer).is_some_and(|found| found < doc.trim().len())
            };
            if let Some(pointer) = POINTERS.iter().find(starts_here) {
                let what =
                    format!("{pointer:?} is invisible in rustdoc: say it on the item itself");
                findings.push(Finding::new(&file.path, at + 1, what));
            }
        }
    }
    findings
}

/// The text of a doc comment.
fn doc_comment(line: &str) -> Option<&str> {
    line.trim_start().strip_prefix("///")
}

#[cfg(test)]
mod tests {
    use super::super::testkit::run;
    use super::*;

    fn found(text: &str) -> Vec<String> {
        run(check, &[("crates/a/src/lib.rs", text)])
    }

    #[test]
    fn docs_that_point_to_a_head_are_found() {
        for pointer in POINTERS {
            let capital = pointer[..1].to_uppercase() + &pointer[1..];
            for text in [format!("/// See the {pointer}."), format!("    /// {capital}: all of it")]
            {
                assert_eq!(found(&text).len(), 1, "{text}");
            }
            let (first, last) = pointer.rsplit_once(' ').unwrap();
            let broken = format!("/// x\n/// See the {first}\n/// {last}.\nfn a() {{}}");
            assert_eq!(found(&broken).len(), 1, "{broken}");
        }
    }

    #[test]
    fn other_comments_may_speak_of_heads() {
        for text in [format!("// {}", POINTERS[0]), format!("//! {}", POINTERS[0])] {
            assert!(found(&text).is_empty(), "{text}");
        }
        assert!(found("/// The head of the queue.\n/// A module.").is_empty());
    }
}
