//! Runs of suites: their needs, commands and output files.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::results::{Results, of_bench, of_csv, refuse_meaningless};
use super::suite::{Form, Suite, Suites};
use super::{result_path, write};

/// Percentage of the processors' time on a busy machine.
const BUSY_PERCENT: u64 = 5;
const WATCHED: Duration = Duration::from_secs(5);

/// Suites to run and how, as the command line asks.
#[derive(Default, Debug)]
pub(super) struct Options<'a> {
    suites: Vec<&'a Suite>,
    traces: Option<PathBuf>,
    busy: bool,
    from: Option<PathBuf>,
    commit: Option<String>,
    command: Option<String>,
    remarks: Option<String>,
}

impl<'a> Options<'a> {
    /// # Errors
    /// Unknown options; incomplete options of `--from`.
    pub(super) fn parse(words: &[&str], suites: &'a Suites) -> Result<Self> {
        let mut options = Self::default();
        let mut words = words.iter();
        while let Some(&word) = words.next() {
            if word == "--busy" {
                options.busy = true;
                continue;
            }
            if !["--suite", "--traces", "--from", "--commit", "--command", "--remarks"]
                .contains(&word)
            {
                bail!("unknown option {word}\n{}", super::USAGE);
            }
            let value = words.next().with_context(|| format!("{word} needs a value"))?;
            match word {
                "--suite" => options.suites.push(suites.find(value)?),
                "--traces" => options.traces = Some(PathBuf::from(value)),
                "--from" => options.from = Some(PathBuf::from(value)),
                "--commit" => options.commit = Some((*value).to_owned()),
                "--command" => options.command = Some((*value).to_owned()),
                _ => options.remarks = Some((*value).to_owned()),
            }
        }
        if options.from.is_some()
            && (options.suites.len() != 1 || options.commit.is_none() || options.command.is_none())
        {
            bail!("--from needs one --suite, --commit and --command");
        }
        let about = [&options.commit, &options.command, &options.remarks];
        if options.from.is_none() && about.into_iter().any(Option::is_some) {
            bail!("--commit, --command and --remarks need --from");
        }
        if options.suites.is_empty() {
            options.suites = suites.iter().collect();
        }
        Ok(options)
    }
}

/// Runs the suites, or takes the file of `--from`, and writes their results.
///
/// # Errors
/// A file in git has changed; the machine is busy; a suite fails; a file cannot be written.
pub(super) fn run_all(root: &Path, options: &Options<'_>) -> Result<()> {
    if let (Some(from), Some(commit), Some(command)) =
        (&options.from, &options.commit, &options.command)
    {
        let text = std::fs::read_to_string(from);
        let text = text.with_context(|| format!("cannot read {}", from.display()))?;
        let remarks = options.remarks.clone().unwrap_or_else(|| "no remarks".to_owned());
        return keep(root, options.suites[0], &text, [commit.clone(), command.clone(), remarks]);
    }
    for suite in &options.suites {
        // Anew for each: those before took their time, and what runs next is built now.
        let commit = commit(root)?;
        let text = run(root, suite, options)?;
        let date = output(Command::new("date").args(["-u", "+%Y-%m-%d"]))?;
        let state = match (suite.needs_idle, options.busy) {
            (true, true) => ", on a machine that may have been busy",
            (true, false) => ", on an idle machine",
            (false, _) => ", exact counts that a load does not change",
        };
        let remarks = format!("{}{state}", date.trim());
        keep(root, suite, &text, [commit, suite.command.clone(), remarks])?;
    }
    Ok(())
}

/// The commit of a run: only documents differ from it.
fn commit(root: &Path) -> Result<String> {
    let changed = output(Command::new("git").current_dir(root).args(["status", "--porcelain"]))?;
    if let Some(line) = changed.lines().find(|line| !is_document(line)) {
        bail!("a commit names no run with changes: {}", line.trim());
    }
    let head =
        output(Command::new("git").current_dir(root).args(["rev-parse", "--short", "HEAD"]))?;
    Ok(head.trim().to_owned())
}

/// True for a line of `git status --porcelain`, two letters, a space, and a path or two, of documents alone.
fn is_document(line: &str) -> bool {
    let paths = line.get(3..).unwrap_or("");
    paths.split(" -> ").all(|path| path.trim_start_matches('"').starts_with("docs/"))
}

/// Standard output of a command; its failure is an error.
fn output(command: &mut Command) -> Result<String> {
    let done = command.stderr(Stdio::inherit()).output();
    let done = done.with_context(|| format!("cannot run {command:?}"))?;
    if !done.status.success() {
        bail!("{command:?} failed: {}", done.status);
    }
    Ok(String::from_utf8(done.stdout)?)
}

/// Builds and runs one suite; returns its output.
fn run(root: &Path, suite: &Suite, options: &Options<'_>) -> Result<String> {
    let out = tempfile_path(&suite.name);
    let (build, arguments) = suite.command.split_once("-- ").unwrap_or((&suite.command, ""));
    let mut command = Command::new("cargo");
    command.current_dir(root).args(["build", "--release"]).args(build.split_whitespace());
    output(&mut command).with_context(|| suite.name.clone())?;
    if suite.needs_idle && !options.busy {
        refuse_busy()?;
    }
    let mut command = Command::new("cargo");
    command.current_dir(root).args(["run", "--quiet", "--release"]);
    command.args(build.split_whitespace()).arg("--");
    for word in shlex::split(arguments).context("the command has an open quote")? {
        match word.as_str() {
            "OUT" => command.arg(&out),
            "TRACES" => command.args(traces(suite, options)?),
            word => command.arg(word),
        };
    }
    println!("{}: about {} minutes", suite.name, suite.minutes);
    let printed = output(&mut command).with_context(|| suite.name.clone())?;
    if !suite.command.split(' ').any(|word| word == "OUT") {
        return Ok(printed);
    }
    let text =
        std::fs::read_to_string(&out).with_context(|| format!("cannot read {}", out.display()));
    std::fs::remove_file(&out).with_context(|| format!("cannot remove {}", out.display()))?;
    text
}

/// A name for the file of a run, of this process alone.
fn tempfile_path(suite: &str) -> PathBuf {
    std::env::temp_dir().join(format!("everbyte-publish-{suite}-{}", std::process::id()))
}

/// Sorted traces of a suite.
fn traces(suite: &Suite, options: &Options<'_>) -> Result<Vec<PathBuf>> {
    let folder = options.traces.as_ref();
    let folder = folder.with_context(|| format!("{} needs --traces FOLDER", suite.name))?;
    let mut found = Vec::new();
    let entries = std::fs::read_dir(folder);
    for entry in entries.with_context(|| format!("cannot list {}", folder.display()))? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if suite.traces.is_empty()
            || suite.traces.iter().any(|begin| name.starts_with(begin.as_str()))
        {
            found.push(std::path::absolute(entry.path())?);
        }
    }
    // A missing trace would silently change the means.
    if found.len() < suite.traces.len().max(1) {
        bail!("{} has {} of the traces that {} needs", folder.display(), found.len(), suite.name);
    }
    found.sort();
    Ok(found)
}

/// Watches the processors for some seconds.
fn refuse_busy() -> Result<()> {
    let before = processor_time()?;
    std::thread::sleep(WATCHED);
    let after = processor_time()?;
    // The counters grow since the boot, so only their difference states the load.
    let (all, idle) = (after[0] - before[0], after[1] - before[1]);
    let percent = (all.saturating_sub(idle) * 100).checked_div(all).unwrap_or(100);
    if percent > BUSY_PERCENT {
        bail!(
            "the machine is busy: {percent} of 100 of its processors' time are taken; see --busy"
        );
    }
    Ok(())
}

/// All time and idle time of the processors, in ticks since the boot.
fn processor_time() -> Result<[u64; 2]> {
    let text = std::fs::read_to_string("/proc/stat").context("cannot read /proc/stat")?;
    let line = text.lines().next().unwrap_or("");
    let ticks: Vec<u64> = line.split_whitespace().skip(1).filter_map(|t| t.parse().ok()).collect();
    let [_, _, _, idle, waiting, ..] = ticks[..] else { bail!("/proc/stat has no processors") };
    Ok([ticks.iter().take(8).sum(), idle + waiting])
}

/// Refuses the document of another suite of `everbyte-bench`.
fn refuse_others(suite: &Suite, text: &str) -> Result<()> {
    let all: serde_json::Value = serde_json::from_str(text)?;
    let wrote = all["suite"].as_str().unwrap_or("");
    let wanted = suite.bench_suite();
    if wrote != wanted {
        bail!("the document is of '{wrote}' and not of '{wanted}'");
    }
    Ok(())
}

fn keep(root: &Path, suite: &Suite, text: &str, about: [String; 3]) -> Result<()> {
    let [commit, command, remarks] = about;
    let (columns, rows, machine) = match suite.form {
        Form::Bench => {
            let refused = refuse_others(suite, text).and_then(|()| refuse_meaningless(text));
            refused.and_then(|()| of_bench(text, &suite.kept, &suite.workloads))
        }
        Form::Csv => of_csv(text, &suite.kept).map(|(columns, rows)| {
            (columns, rows, "any machine: counts, and costs of a model".into())
        }),
    }
    .with_context(|| suite.name.clone())?;
    let results = Results::new(&suite.name, [commit, command, machine, remarks], columns, rows)?;
    write(&result_path(root, &suite.name), &results.to_text())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn suites() -> Suites {
        let text =
            "title = 't'\ncommand = '-p b -- consistency OUT'\nform = 'bench'\nminutes = 1\n";
        Suites::parse([("tpcc.toml", text), ("points.toml", text)].into_iter()).unwrap()
    }

    #[test]
    fn document_of_another_suite_is_refused() {
        let suites = suites();
        let tpcc = suites.find("tpcc").unwrap();
        assert!(refuse_others(tpcc, r#"{"suite":"consistency"}"#).is_ok());
        let error = refuse_others(tpcc, r#"{"suite":"block"}"#).unwrap_err();
        assert_eq!(error.to_string(), "the document is of 'block' and not of 'consistency'");
    }

    #[test]
    fn only_documents_may_differ_from_the_commit() {
        for line in [" M docs/benchmarks.md", "?? docs/results/new.json", "R  docs/a -> docs/b"] {
            assert!(is_document(line), "{line}");
        }
        for line in [" M xtask/src/main.rs", "?? crates/a/docs/lib.rs", "R  docs/a -> crates/a"] {
            assert!(!is_document(line), "{line}");
        }
    }

    #[test]
    fn unknown_and_incomplete_options_are_refused() {
        let suites = suites();
        let error = |words: &[&str]| Options::parse(words, &suites).unwrap_err().to_string();
        assert!(error(&["--sweet"]).starts_with("unknown option --sweet"));
        assert_eq!(error(&["--suite", "all"]), "no suite all");
        assert_eq!(error(&["--suite"]), "--suite needs a value");
        let text = "--from needs one --suite, --commit and --command";
        assert_eq!(error(&["--from", "x", "--commit", "c"]), text);
        let text = "--commit, --command and --remarks need --from";
        assert_eq!(error(&["--suite", "tpcc", "--commit", "c"]), text);
        assert_eq!(Options::parse(&[], &suites).unwrap().suites.len(), 2);
    }
}
