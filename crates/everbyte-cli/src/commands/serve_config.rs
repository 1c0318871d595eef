//! Configuration files: their keys are the options of a command, by clap's own table.

use std::path::Path;

use anyhow::Context;
use clap::error::ContextKind;
use clap::{ArgAction, Args};

use crate::arguments::UsageError;
use crate::config::{ConfigEntry, ConfigError, ConfigValue, parse_config};

/// Bytes of a configuration file at most.
const BYTES_MAX: u64 = 1 << 20;
/// The key of the pool, which has no option.
const POOL: &str = "pool";

/// Reads the options from `file`.
///
/// # Errors
/// The file cannot be read, or another user can change it. [`UsageError`] for a mistake in it.
pub(super) fn read<A: Args>(file: &Path) -> anyhow::Result<A> {
    let shown = file.display();
    let bytes = everbyte_path::read_trusted_file(file, BYTES_MAX);
    let bytes = bytes.with_context(|| format!("cannot read {shown}"))?;
    let text = String::from_utf8(bytes)
        .map_err(|_| ConfigError { line: None, reason: "the file is not UTF-8 text".to_owned() });
    text.and_then(|text| options(&text)).map_err(|ConfigError { line, reason }| {
        let line = line.map(|line| format!(":{line}")).unwrap_or_default();
        UsageError(everbyte_text::escaped(&format!("{shown}{line}: {reason}")).into_owned()).into()
    })
}

pub(super) fn options<A: Args>(text: &str) -> Result<A, ConfigError> {
    let command = A::augment_args(clap::Command::new("serve").no_binary_name(true));
    let entries = parse_config(text)?;
    let (mut words, mut pool) = (Vec::new(), None);
    for entry in &entries {
        let wrong = |reason: String| ConfigError { line: Some(entry.line), reason };
        match (&entry.value, entry.key.as_str()) {
            (ConfigValue::Word(path), POOL) => pool = Some(path.clone()),
            (_, POOL) => return Err(wrong(format!("{POOL} is a path: write it as text"))),
            (value, key) => {
                let action =
                    action_of(&command, key).ok_or_else(|| wrong(unknown(&command, key)))?;
                words.extend(words_of(key, action, value).map_err(wrong)?);
            }
        }
    }
    let missing = || ConfigError { line: None, reason: format!("the key {POOL} is missing") };
    // After `--`, the path of a pool is never an option.
    words.extend(["--".to_owned(), pool.ok_or_else(missing)?]);
    let read = command.try_get_matches_from(words);
    let read = read.and_then(|matches| A::from_arg_matches(&matches));
    read.map_err(|error| place(&error, &entries))
}

/// Returns the action of an option of a configuration.
pub(super) fn action_of<'a>(command: &'a clap::Command, key: &str) -> Option<&'a ArgAction> {
    let mut options = command.get_arguments().filter(|option| option.get_id() != "config");
    options.find(|option| option.get_long() == Some(key)).map(clap::Arg::get_action)
}

fn unknown(command: &clap::Command, key: &str) -> String {
    let options = command.get_arguments().filter_map(clap::Arg::get_long);
    let keys: Vec<_> = options.filter(|key| action_of(command, key).is_some()).collect();
    format!("unknown key {key:?}: the keys are {POOL}, {}", keys.join(", "))
}

/// The words of a command line with the same effect.
fn words_of(key: &str, action: &ArgAction, value: &ConfigValue) -> Result<Vec<String>, String> {
    let option = |word: &String| format!("--{key}={word}");
    match (action, value) {
        (ArgAction::SetTrue, ConfigValue::Switch(true)) => Ok(vec![format!("--{key}")]),
        (ArgAction::SetTrue, ConfigValue::Switch(false)) => Ok(Vec::new()),
        (ArgAction::SetTrue, _) => Err(format!("{key} is true or false, without quotes")),
        (_, ConfigValue::Word(word)) => Ok(vec![option(word)]),
        (ArgAction::Append, ConfigValue::List(words)) => Ok(words.iter().map(option).collect()),
        (ArgAction::Append, _) => Err(format!("{key} is a text or a list of texts")),
        _ => Err(format!("{key} has one value: write it as text")),
    }
}

/// Gives an error of clap the line of its option.
fn place(error: &clap::Error, entries: &[ConfigEntry]) -> ConfigError {
    let option = error.get(ContextKind::InvalidArg).map(ToString::to_string).unwrap_or_default();
    let key = option.trim_start_matches("--").split(' ').next().unwrap_or_default();
    let line = entries.iter().find(|entry| entry.key == key).map(|entry| entry.line);
    // Later paragraphs show the usage of the command line.
    let said = error.render().to_string();
    let said = said.split("\n\nUsage:").next().unwrap_or_default();
    let said = said.split("\n\nFor more").next().unwrap_or_default();
    let words: Vec<_> = said.trim_start_matches("error: ").split_whitespace().collect();
    ConfigError { line, reason: words.join(" ") }
}
