//! Required documents, and links between documents.

use super::rules::RULES;
use super::{Finding, Tree};

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for path in &RULES.pages.required {
        let text = tree.get(path).map(|file| file.text.trim());
        if text.is_none_or(str::is_empty) {
            let what = if text.is_none() { "is missing" } else { "is empty" };
            findings.push(Finding::new(path, 0, what));
        }
    }
    for file in tree.files().iter().filter(|file| file.path.ends_with(".md")) {
        for (at, line) in file.text.lines().enumerate() {
            for target in relative_links(line) {
                let path = resolve(&file.path, target);
                // A link can lead to a folder, and the tree has files only.
                let folder = format!("{path}/");
                if tree.get(&path).is_none() && tree.below(&folder).next().is_none() {
                    let what = format!("the link to {target} leads nowhere");
                    findings.push(Finding::new(&file.path, at + 1, what));
                }
            }
        }
    }
    findings
}

/// Targets of `](target)` in a line, without those on the web or in the same page, and without
/// their fragments.
fn relative_links(line: &str) -> impl Iterator<Item = &str> {
    line.split("](").skip(1).filter_map(|rest| {
        let target = rest.split(')').next()?.split('#').next()?;
        // A colon marks a scheme such as `https:`.
        (!target.is_empty() && !target.contains(':')).then_some(target)
    })
}

/// The path from the root of `target` as named in the document at `from`.
fn resolve(from: &str, target: &str) -> String {
    let mut parts: Vec<&str> = from.split('/').collect();
    // A relative link starts from the folder of its document.
    parts.pop();
    for part in target.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop();
            }
            name => parts.push(name),
        }
    }
    parts.join("/")
}

#[cfg(test)]
mod tests {
    use super::super::testkit::run;
    use super::*;

    fn complete() -> Vec<(&'static str, &'static str)> {
        RULES.pages.required.iter().map(|path| (path.as_str(), "text")).collect()
    }

    #[test]
    fn missing_or_empty_document_is_found() {
        assert!(run(check, &complete()).is_empty());
        for at in 0..RULES.pages.required.len() {
            let mut files = complete();
            files[at].1 = "\n";
            assert_eq!(run(check, &files), [format!("{}: is empty", RULES.pages.required[at])]);
            files.remove(at);
            assert_eq!(run(check, &files), [format!("{}: is missing", RULES.pages.required[at])]);
        }
    }

    #[test]
    fn dead_link_is_found() {
        let mut files = complete();
        files.push(("docs/x.md", "[a](../README.md) [b](design.md#why) [c](https://x/y) [d](#e)"));
        files.push(("docs/decisions/0001-x.md", "[up](../design.md) [all](../decisions)"));
        assert!(run(check, &files).is_empty());
        files.push(("docs/y.md", "first\n[a](../DESIGN.md)"));
        assert_eq!(run(check, &files), ["docs/y.md:2: the link to ../DESIGN.md leads nowhere"]);
    }
}
