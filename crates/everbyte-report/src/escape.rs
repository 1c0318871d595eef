//! Text of callers inside HTML.

/// Returns `text` as HTML. Characters without a shape, such as control characters and marks that
/// change the direction of writing, become their numbers.
#[must_use]
pub fn escaped(text: &str) -> String {
    let mut html = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => html += "&amp;",
            '<' => html += "&lt;",
            '>' => html += "&gt;",
            '"' => html += "&quot;",
            '\'' => html += "&#39;",
            // Marks of direction could show a hostile name as another one.
            hidden if is_hidden(hidden) => html.extend(hidden.escape_unicode()),
            shown => html.push(shown),
        }
    }
    html
}

fn is_hidden(character: char) -> bool {
    let is_mark = matches!(character, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}')
        || matches!(character, '\u{2066}'..='\u{2069}' | '\u{feff}' | '\u{61c}');
    character.is_control() || is_mark
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markup_and_hidden_characters_stay_text() {
        assert_eq!(escaped("a<b>&\"c\"'"), "a&lt;b&gt;&amp;&quot;c&quot;&#39;");
        assert_eq!(escaped("x\u{1b}[31m\n\0"), "x\\u{1b}[31m\\u{a}\\u{0}");
        assert_eq!(escaped("a\u{202e}b"), "a\\u{202e}b");
        assert_eq!(escaped("Grüße 日本"), "Grüße 日本");
    }
}
