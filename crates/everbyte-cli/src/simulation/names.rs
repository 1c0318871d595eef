//! Names of traces for people: the file's own name, or the whole path where two traces share it.

use std::collections::BTreeMap;
use std::path::Path;

use super::results::Row;

/// Short names of the traces of `rows`, by their paths.
pub(super) fn short_names(rows: &[Row]) -> BTreeMap<&str, String> {
    let mut names: BTreeMap<&str, String> =
        rows.iter().map(|row| (row.trace.as_str(), short(&row.trace))).collect();
    let mut count: BTreeMap<String, usize> = BTreeMap::new();
    for name in names.values() {
        *count.entry(name.clone()).or_default() += 1;
    }
    for (path, name) in &mut names {
        if count[name] > 1 {
            *name = printable(path);
        }
    }
    names
}

fn short(path: &str) -> String {
    match Path::new(path).file_name() {
        _ if path == "-" => "standard input".to_owned(),
        Some(name) => printable(&name.to_string_lossy()),
        None => printable(path),
    }
}

/// `text` without control characters of terminals.
fn printable(text: &str) -> String {
    let mut printable = String::new();
    for character in text.chars() {
        match character {
            control if control.is_control() => printable.extend(control.escape_default()),
            shown => printable.push(shown),
        }
    }
    printable
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_short_and_told_apart() {
        assert_eq!(short("/a/b/web.csv"), "web.csv");
        assert_eq!(short("-"), "standard input");
        assert_eq!(short("/a/x\u{1b}[2J\n"), "x\\u{1b}[2J\\n");
    }
}
