//! Runs of suites: their needs, commands and output files.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::results::{Results, meaningless, of_bench, of_csv};
use super::suite::{Form, Suite, Suites};
use super::{FOLDER, write};

/// Percentage of the processors' time on a busy machine.
const BUSY_PERCENT: u64 = 5;
const WATCHED: Duration = Duration::from_secs(5);

/// Suites to run, or the output of another machine.
#[derive(clap::Args, Default)]
pub(super) struct Options {
    /// Suite to run. The option can be repeated
    #[arg(long = "suite", value_name = "NAME")]
    suites: Vec<String>,
    /// Folder of the traces
    #[arg(long, value_name = "FOLDER")]
    traces: Option<PathBuf>,
    /// Allow a busy machine. The results say so
    #[arg(long)]
    busy: bool,
    /// Keep the output of the suite's command from another machine
    #[arg(long, value_name = "FILE", requires_all = ["suites", "commit", "command"])]
    from: Option<PathBuf>,
    /// Commit of --from
    #[arg(long, requires = "from", default_value = "", hide_default_value = true)]
    commit: String,
    /// Command of --from
    #[arg(
        long,
        requires = "from",
        value_name = "WORDS",
        default_value = "",
        hide_default_value = true
    )]
    command: String,
    /// Remarks on --from
    #[arg(long, requires = "from", value_name = "WORDS", default_value = "no remarks")]
    remarks: String,
}

/// Runs the suites, or takes the file of `--from`, and writes their results.
///
/// # Errors
/// No suite has a name; a file in git has changed; the machine is busy; a suite fails; a file cannot be written.
pub(super) fn run_all(root: &Path, all: &Suites, options: &Options) -> Result<()> {
    let named = options.suites.iter().map(|name| all.find(name));
    let mut suites = named.collect::<Result<Vec<&Suite>>>()?;
    if let Some(from) = &options.from {
        let [suite] = suites[..] else { bail!("--from is the output of one suite") };
        let text = std::fs::read_to_string(from);
        let text = text.with_context(|| format!("cannot read {}", from.display()))?;
        let about = [&options.commit, &options.command, &options.remarks].map(String::clone);
        return keep(root, suite, &text, about);
    }
    if suites.is_empty() {
        suites = all.iter().collect();
    }
    for suite in suites {
        // Again for each suite: the suites before took their time, and cargo builds the next one now.
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
    // Results name a commit, and changed code belongs to none.
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
fn run(root: &Path, suite: &Suite, options: &Options) -> Result<String> {
    // The number of the process keeps two runs apart.
    let out = format!("everbyte-publish-{}-{}", suite.name, std::process::id());
    let out = std::env::temp_dir().join(out);
    let (build, arguments) = suite.command.split_once("-- ").unwrap_or((&suite.command, ""));
    let mut command = Command::new("cargo");
    command.current_dir(root).args(["build", "--release"]).args(build.split_whitespace());
    output(&mut command).with_context(|| suite.name.clone())?;
    // The build has ended before: its load would be measured.
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

/// Sorted traces of a suite.
fn traces(suite: &Suite, options: &Options) -> Result<Vec<PathBuf>> {
    let folder = options.traces.as_ref();
    let folder = folder.with_context(|| format!("{} needs --traces FOLDER", suite.name))?;
    let mut found = Vec::new();
    let entries = std::fs::read_dir(folder);
    for entry in entries.with_context(|| format!("cannot list {}", folder.display()))? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let is_wanted = |begin: &String| name.starts_with(begin.as_str());
        if suite.traces.is_empty() || suite.traces.iter().any(is_wanted) {
            found.push(std::path::absolute(entry.path())?);
        }
    }
    // A missing trace would silently change the means.
    if found.len() < suite.traces.len().max(1) {
        bail!("{} has {} of the traces that {} needs", folder.display(), found.len(), suite.name);
    }
    // The order of a folder differs between file systems, and rows follow the arguments.
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
    // Guest time is a part of user time, so the first eight counters are all.
    Ok([ticks.iter().take(8).sum(), idle + waiting])
}

/// Refuses the document of another suite of `everbyte-bench`, and a document of meaningless figures.
fn refuse_others(suite: &Suite, text: &str) -> Result<()> {
    let all: serde_json::Value = serde_json::from_str(text)?;
    let (wrote, wanted) = (all["suite"].as_str().unwrap_or(""), suite.bench_suite());
    if wrote != wanted {
        bail!("the document is of '{wrote}' and not of '{wanted}'");
    }
    meaningless(&all["environment"]).map_or(Ok(()), |why| bail!("{why}"))
}

fn keep(root: &Path, suite: &Suite, text: &str, about: [String; 3]) -> Result<()> {
    let [commit, command, remarks] = about;
    let (columns, rows, machine) = match suite.form {
        Form::Bench => {
            refuse_others(suite, text).and_then(|()| of_bench(text, &suite.kept, &suite.workloads))
        }
        Form::Csv => of_csv(text, &suite.kept).map(|(columns, rows)| {
            (columns, rows, "any machine: counts, and costs of a model".into())
        }),
    }
    .with_context(|| suite.name.clone())?;
    let results = Results::new(&suite.name, [commit, command, machine, remarks], columns, rows)?;
    write(&root.join(format!("{FOLDER}{}.json", suite.name)), &results.to_text())
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
    fn debug_builds_and_smoke_tests_are_refused() {
        let suites = suites();
        let refused = |about: &str| {
            let text = format!(r#"{{"suite":"consistency","environment":{{{about}}},"rows":[]}}"#);
            let refused = refuse_others(suites.find("tpcc").unwrap(), &text);
            refused.err().map(|error| error.to_string())
        };
        let why = |why: &str| Some(why.to_owned());
        assert_eq!(refused(r#""quick":true"#), why("a smoke test, made with --quick"));
        assert_eq!(refused(r#""debug_build":true"#), why("a build with debug assertions"));
        assert_eq!(refused(r#""quick":false,"debug_build":false"#), None);
    }

    #[test]
    fn incomplete_and_unknown_options_are_refused() {
        #[derive(clap::Parser)]
        struct Command {
            #[command(flatten)]
            args: super::super::PublishArgs,
        }
        let parse = |words: &str| {
            let words = std::iter::once("publish").chain(words.split_whitespace());
            <Command as clap::Parser>::try_parse_from(words).map(|command| command.args)
        };
        for words in [
            "--sweet",
            "--suite",
            "--from x --commit c --command w",
            "--from x --suite tpcc --commit c",
            "--suite tpcc --commit c",
            "--render --check",
            "--render --suite tpcc",
            "--to folder",
            "--compare one",
        ] {
            assert!(parse(words).is_err(), "{words}");
        }
        let args = parse("--suite tpcc --suite points --from x --commit c --command w").unwrap();
        let error = run_all(Path::new("/"), &suites(), &args.run).unwrap_err();
        assert_eq!(error.to_string(), "--from is the output of one suite");
        let error = run_all(Path::new("/"), &suites(), &parse("--suite all").unwrap().run);
        assert_eq!(error.unwrap_err().to_string(), "no suite all");
        assert!(parse("--where -57.7").unwrap().other.is_some_and(|other| other.number.is_some()));
        assert!(parse("--busy").unwrap().other.is_none());
    }
}
