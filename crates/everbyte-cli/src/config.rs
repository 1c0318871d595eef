//! The configuration file of a server: keys, their values and their lines.
//!
//! Owns the syntax only, a subset of TOML. The caller knows the options and their meaning.

use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// A key of the file, its value and its line.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct ConfigEntry {
    /// The key, in the file's letters.
    pub(crate) key: String,
    /// The value.
    pub(crate) value: ConfigValue,
    /// The line of the key, from 1.
    pub(crate) line: usize,
}

/// A value of a key. Numbers are words: the option has its own form of numbers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum ConfigValue {
    /// `true` or `false`.
    Switch(bool),
    /// A text or an integer.
    Word(String),
    /// A list of texts and integers.
    List(Vec<String>),
}

/// A mistake in a configuration.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{reason}")]
pub(crate) struct ConfigError {
    /// The line of the mistake, from 1; `None` if it has no line.
    pub(crate) line: Option<usize>,
    /// The mistake and its remedy.
    pub(crate) reason: String,
}

/// Reads the entries of a configuration, in the order of their lines.
///
/// # Errors
/// The text is not TOML, or a value is neither a text, an integer, `true`, `false` nor a list of
/// texts and integers.
pub(crate) fn parse_config(text: &str) -> Result<Vec<ConfigEntry>, ConfigError> {
    let line_of = |at: usize| text.bytes().take(at).filter(|byte| *byte == b'\n').count() + 1;
    let table = DeTable::parse(text).map_err(|error| ConfigError {
        line: error.span().map(|span| line_of(span.start)),
        reason: error.message().to_owned(),
    })?;
    let mut entries = Vec::new();
    for (key, value) in table.get_ref() {
        let line = line_of(key.span().start);
        let value = value_of(value).map_err(|reason| ConfigError {
            line: Some(line_of(value.span().start)),
            reason: format!("key {:?}: {reason}", key.get_ref()),
        })?;
        entries.push(ConfigEntry { key: key.get_ref().to_string(), value, line });
    }
    entries.sort_by_key(|entry| entry.line);
    Ok(entries)
}

fn value_of(value: &Spanned<DeValue<'_>>) -> Result<ConfigValue, String> {
    match value.get_ref() {
        DeValue::Boolean(switch) => Ok(ConfigValue::Switch(*switch)),
        DeValue::Array(list) => {
            let words = list.iter().map(|value| word_of(value.get_ref()));
            words.collect::<Result<_, _>>().map(ConfigValue::List)
        }
        value => word_of(value).map(ConfigValue::Word),
    }
}

fn word_of(value: &DeValue<'_>) -> Result<String, String> {
    match value {
        DeValue::String(text) => Ok(text.to_string()),
        // Modes are octal and sizes have units, so 0o660 and 660 would have different meanings.
        DeValue::Integer(number) if number.radix() != 10 => {
            Err("a number with a base: write it as text".to_owned())
        }
        DeValue::Integer(number) => Ok(number.as_str().to_owned()),
        other => Err(format!("a value of type {}: write it as text", other.type_str())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(key: &str, value: ConfigValue, line: usize) -> ConfigEntry {
        ConfigEntry { key: key.to_owned(), value, line }
    }

    #[test]
    fn config_values_keep_words_and_lines() {
        let text = "# a pool\nz = 'a b'\n\nn = 5\nlist = [\n 'x', 7]\n\"a.b\" = false\n";
        let list = ConfigValue::List(vec!["x".to_owned(), "7".to_owned()]);
        let wanted = [
            entry("z", ConfigValue::Word("a b".to_owned()), 2),
            entry("n", ConfigValue::Word("5".to_owned()), 4),
            entry("list", list, 5),
            entry("a.b", ConfigValue::Switch(false), 7),
        ];
        assert_eq!(parse_config(text).unwrap(), wanted);
        assert_eq!(parse_config(""), Ok(Vec::new()));
    }

    #[test]
    fn config_mistakes_name_their_line() {
        for (text, line, words) in [
            ("a = 1\na = 2", 2, "duplicate key"),
            ("a = 1\nb", 2, ""),
            ("\na = 1.5", 2, "float"),
            ("[nbd]\nx = 1", 1, "table"),
            ("\n\na.b = 1", 3, "table"),
            ("a = [true]", 1, "boolean"),
            ("m = 0o660", 1, "as text"),
            ("d = 2020-01-01", 1, "datetime"),
        ] {
            let error = parse_config(text).unwrap_err();
            assert_eq!(error.line, Some(line), "{text:?}: {error}");
            assert!(error.reason.contains(words), "{text:?}: {error}");
        }
        let deep = format!("a = {}", "[".repeat(100_000));
        assert!(parse_config(&deep).is_err());
    }
}
