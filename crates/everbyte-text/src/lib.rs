//! Text of others, made safe for terminals and logs.
//!
//! Owns the one rule about characters that change a terminal's state or the order of shown text:
//! [`escaped`] and its siblings replace them. The escape is idempotent. Knows neither output nor
//! logs.

#![forbid(unsafe_code)]

use std::borrow::Cow;
use std::fmt::{self, Display, Write};

/// Replaces each control and format character of `text` by its escape, such as `\n` or `\u{1b}`:
/// the C0 and C1 sets, line and paragraph separators, marks of direction and joining, tags.
///
/// ```
/// assert_eq!(everbyte_text::escaped("a\u{1b}[31m\nb"), r"a\u{1b}[31m\nb");
/// ```
#[must_use]
pub fn escaped(text: &str) -> Cow<'_, str> {
    escape(text, false)
}

/// As [`escaped`], for text of several lines: keeps tabs and ends of lines.
#[must_use]
pub fn escaped_lines(text: &str) -> Cow<'_, str> {
    escape(text, true)
}

/// As [`escaped`], for bytes: bytes outside UTF-8 become `\x` and two digits.
#[must_use]
pub fn escaped_bytes(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        // Chunks have whole characters, so no escape depends on the bytes around it.
        out.push_str(&escaped(chunk.valid()));
        for byte in chunk.invalid() {
            let _cannot_fail = write!(out, "\\x{byte:02x}");
        }
    }
    out
}

/// A value with its text shown by [`escaped`].
#[derive(Clone, Copy, Debug)]
pub struct Escaped<T>(pub T);

impl<T: Display> Display for Escaped<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&escaped(&self.0.to_string()))
    }
}

/// Replaces non-ASCII characters of JSON text by JSON escapes if [`escaped`] would replace them.
/// The meaning is unchanged, because such characters occur only in strings.
#[must_use]
pub fn escaped_json(json: &str) -> Cow<'_, str> {
    if !json.contains(|c: char| c > '~' && is_special(c)) {
        return Cow::Borrowed(json);
    }
    let mut out = String::with_capacity(json.len());
    for c in json.chars() {
        if c > '~' && is_special(c) {
            // JSON escapes have four digits, so a character beyond the first plane takes two.
            for unit in c.encode_utf16(&mut [0; 2]) {
                let _cannot_fail = write!(out, "\\u{unit:04x}");
            }
        } else {
            out.push(c);
        }
    }
    Cow::Owned(out)
}

fn escape(text: &str, keeps_lines: bool) -> Cow<'_, str> {
    // A carriage return is always replaced: on a terminal, later text of the line would hide the
    // text before it.
    let is_replaced = |c: char| is_special(c) && !(keeps_lines && matches!(c, '\n' | '\t'));
    if !text.contains(is_replaced) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        match is_replaced(c) {
            true => out.extend(c.escape_default()),
            false => out.push(c),
        }
    }
    Cow::Owned(out)
}

/// Returns true for characters of the general categories Cc, Cf, Zl and Zp of Unicode 16.
fn is_special(c: char) -> bool {
    c.is_control()
        || matches!(c,
            '\u{ad}'
            | '\u{600}'..='\u{605}'
            | '\u{61c}'
            | '\u{6dd}'
            | '\u{70f}'
            | '\u{890}'..='\u{891}'
            | '\u{8e2}'
            | '\u{180e}'
            | '\u{200b}'..='\u{200f}'
            | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}'
            | '\u{feff}'
            | '\u{fff9}'..='\u{fffb}'
            | '\u{110bd}'
            | '\u{110cd}'
            | '\u{13430}'..='\u{1343f}'
            | '\u{1bca0}'..='\u{1bca3}'
            | '\u{1d173}'..='\u{1d17a}'
            | '\u{e0000}'..='\u{e007f}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_and_format_characters_are_escaped() {
        for (text, shown) in [
            ("", ""),
            ("b\u{1b}[31m", "b\\u{1b}[31m"),
            ("a\r\n\tb\0\u{7f}", "a\\r\\n\\tb\\u{0}\\u{7f}"),
            ("\u{9b}31m", "\\u{9b}31m"),
            ("x\u{202e}txt.exe", "x\\u{202e}txt.exe"),
            ("\u{2066}a\u{2069}\u{200b}\u{feff}", "\\u{2066}a\\u{2069}\\u{200b}\\u{feff}"),
            ("\u{2028}\u{e0041}", "\\u{2028}\\u{e0041}"),
            ("Größe \\ 数 🦀", "Größe \\ 数 🦀"),
        ] {
            assert_eq!(escaped(text), shown);
            assert_eq!(escaped(shown), shown, "again");
        }
        assert_eq!(escaped_lines("a\n\tb\u{1b}\r"), "a\n\tb\\u{1b}\\r");
        assert_eq!(escaped_bytes(b"a\xff\x1b\xc3\xa4"), "a\\xff\\u{1b}ä");
        assert_eq!(format!("{:>6}|", Escaped("a\n")), "   a\\n|");
    }

    #[test]
    fn escaped_json_means_the_same() {
        let json = "{\"a\": \"x\\n\u{9b}\u{202e}\u{e0041}ä\"}\n";
        assert_eq!(escaped_json(json), "{\"a\": \"x\\n\\u009b\\u202e\\udb40\\udc41ä\"}\n");
        assert!(matches!(escaped_json("[1]\n"), Cow::Borrowed(_)));
    }
}
