//! Configuration files as people type them.
//!
//! Oracle: no panic, and every accepted file has the same entries after they were written as plain
//! TOML and read again. A mistake has a line of the file.

// The program is no library, and the parser has no other user: its file is a module of both.
#[path = "../../everbyte-cli/src/config.rs"]
mod syntax;

use syntax::{ConfigEntry, ConfigValue, parse_config};

/// Reads `bytes` as a configuration.
///
/// # Panics
/// If a promise is broken.
pub fn config(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let lines = text.bytes().filter(|byte| *byte == b'\n').count() + 1;
    match parse_config(text) {
        Ok(entries) => {
            assert!(entries.iter().all(|entry| (1..=lines).contains(&entry.line)), "{entries:?}");
            let written: String = entries.iter().map(line_of).collect();
            let again = parse_config(&written).unwrap();
            let same =
                |(a, b): (&ConfigEntry, &ConfigEntry)| (&a.key, &a.value) == (&b.key, &b.value);
            assert!(
                again.len() == entries.len() && entries.iter().zip(&again).all(same),
                "{written}"
            );
        }
        Err(error) => {
            assert!(!error.reason.is_empty());
            assert!(error.line.is_none_or(|line| (1..=lines).contains(&line)), "{error:?}");
        }
    }
}

fn line_of(entry: &ConfigEntry) -> String {
    let value = match &entry.value {
        ConfigValue::Switch(switch) => switch.to_string(),
        ConfigValue::Word(word) => quoted(word),
        ConfigValue::List(words) => {
            format!("[{}]", words.iter().map(|word| quoted(word)).collect::<Vec<_>>().join(","))
        }
    };
    format!("{} = {value}\n", quoted(&entry.key))
}

/// A text of TOML with every character as an escape.
fn quoted(text: &str) -> String {
    let escaped = text.chars().map(|c| format!("\\U{:08x}", u32::from(c)));
    format!("\"{}\"", escaped.collect::<String>())
}
