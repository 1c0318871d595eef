//! Patterns of names, where `*` stands for any text.

/// Returns true if the text matches one of `patterns`.
fn matches_any(text: &str, patterns: &[String]) -> bool {
    patterns.iter().any(|pattern| matches(text, pattern))
}

/// Returns true if the text matches one of `only`, or `only` is empty, and no pattern of `not`.
pub(crate) fn selects(text: &str, only: &[String], not: &[String]) -> bool {
    (only.is_empty() || matches_any(text, only)) && !matches_any(text, not)
}

fn matches(text: &str, pattern: &str) -> bool {
    match pattern.split_once('*') {
        None => text == pattern,
        Some((begin, rest)) => text.strip_prefix(begin).is_some_and(|text| {
            // Each `*` may take any length, so all ends are tried. Patterns are short.
            text.char_indices()
                .map(|(at, _)| at)
                .chain([text.len()])
                .any(|at| matches(&text[at..], rest))
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stars_stand_for_any_text() {
        for (text, pattern) in [("abc", "abc"), ("abc", "*"), ("abc", "a*c"), ("abc", "*b*")] {
            assert!(matches(text, pattern), "{text} {pattern}");
        }
        for (text, pattern) in [("abc", "ab"), ("abc", "*b"), ("abc", "a*d*"), ("", "a*")] {
            assert!(!matches(text, pattern), "{text} {pattern}");
        }
    }
}
