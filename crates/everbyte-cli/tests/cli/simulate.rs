//! `everbyte sim`: traces from generator to report, and sweeps in parts.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use everbyte_testkit::not_run;
use serde_json::Value;

use crate::{Outcome, Place, everbyte};

/// Sizes and policies for the tests here, small for speed.
const SIM_ARGS: &str = "--policy hybrid,clock-migration,lru --size 10%,50%,8M --backing hdd";

#[test]
fn results_replace_no_pool_or_trace() {
    let place = Place::with_disk();
    generated(&place);
    let before = place.bytes();
    place.run("sim generate web --requests 100 --out POOL").failed(1, &["is a pool"]);
    for (option, words) in
        [("--csv POOL", "is a pool"), ("--report FOLDER/web.csv.zst", "what is read")]
    {
        let line = format!("sim FOLDER/web.csv.zst {SIM_ARGS} {option}");
        place.run(&line).failed(1, &[words]);
    }
    assert_eq!(place.bytes(), before);
}

#[test]
fn plan_replaces_no_pool_or_trace() {
    let place = Place::with_disk();
    let trace = generated(&place);
    let before = (place.bytes(), fs::read(&trace).unwrap());
    for force in ["", "--force"] {
        for (out, words) in [("POOL", "is a pool"), ("FOLDER/web.csv.zst", "what is read")] {
            let line = format!("sim plan FOLDER/web.csv.zst {SIM_ARGS} --out {out} {force}");
            place.run(&line).failed(1, &[words]);
        }
    }
    assert!((place.bytes(), fs::read(&trace).unwrap()) == before);
}

/// A pipe is written as any file. Its reader is the command itself, or comes later.
#[test]
fn results_go_into_pipes() {
    let place = Place::empty();
    let trace = generated(&place);
    let line = format!("sim FOLDER/web.csv.zst {SIM_ARGS}");
    place.run(&format!("{line} --csv FOLDER/out.csv")).good();
    let csv = fs::read_to_string(place.folder.path().join("out.csv")).unwrap();
    let all = place.run(&format!("{line} --csv /dev/stdout")).good();
    assert!(all.starts_with(&csv), "{all}");
    assert!(all.len() > csv.len(), "the table comes behind");

    let pipe = place.folder.path().join("pipe.zst");
    let made = Command::new("mkfifo").arg(&pipe).status().unwrap();
    assert!(made.success());
    let reader = std::thread::spawn(move || fs::read(pipe).unwrap());
    place.run("sim generate web --requests 5000 --seed 3 --out FOLDER/pipe.zst").good();
    assert!(reader.join().unwrap() == fs::read(trace).unwrap());
}

#[test]
fn invalid_skew_replaces_no_trace() {
    let place = Place::empty();
    let trace = generated(&place);
    let before = fs::read(&trace).unwrap();
    for skew in ["nan", "inf", "-1e300"] {
        let line = format!("sim generate zipf --skew={skew} --out FOLDER/web.csv.zst");
        place.run(&line).failed(1, &["a skew that is a number of at least 0"]);
    }
    assert_eq!(fs::read(&trace).unwrap(), before);
}

fn generated(place: &Place) -> PathBuf {
    let path = place.folder.path().join("web.csv.zst");
    place.run("sim generate web --requests 5000 --seed 3 --out FOLDER/web.csv.zst").good();
    path
}

#[test]
fn generated_trace_matches_paper() {
    let place = Place::empty();
    generated(&place);
    let info = &place.run("sim info FOLDER/web.csv.zst --json").json()[0];
    assert_eq!(info["format"], "csv");
    assert_eq!(info["footprint_bytes"], 20_428 * 1024);
    let mean = info["mean_write_bytes"].as_f64().unwrap();
    assert!((mean / 1599.0 - 1.0).abs() < 0.01, "{mean}");
    let text = place.run("sim info FOLDER/web.csv.zst").good();
    assert!(text.contains("footprint  5107 pages, 19.9 MiB"), "{text}");
    let plain = place.run("sim generate web --requests 5000 --seed 3").good();
    let packed = fs::read(place.folder.path().join("web.csv.zst")).unwrap();
    assert_eq!(zstd::decode_all(&packed[..]).unwrap(), plain.as_bytes());
}

#[test]
fn results_have_four_formats() {
    let place = Place::empty();
    generated(&place);
    let outputs = "--csv FOLDER/out.csv --report FOLDER/out.html";
    let line = format!("sim FOLDER/web.csv.zst {SIM_ARGS}");
    let document = place.run(&format!("{line} {outputs} --json")).json();
    assert_eq!(document["version"], 1);
    let results = document["results"].as_array().unwrap();
    assert_eq!(results.len(), 9);
    let mut drained = 0;
    for result in results {
        let outcome = &result["outcome"];
        let accesses: u64 = ["reads", "writes"]
            .iter()
            .flat_map(|op| ["dram", "scm", "missed"].map(|at| outcome[op][at].as_u64().unwrap()))
            .sum();
        assert!(accesses > 5000, "{result}");
        assert_eq!(outcome["footprint_pages"], 5107);
        let dirty = outcome["drain"]["pages"].as_u64().unwrap();
        drained += dirty;
        let time = |name: &str| outcome[name].as_f64().unwrap();
        let takes_longer = time("elapsed_with_drain_ns") > time("elapsed_ns");
        assert_eq!(takes_longer, dirty > 0, "{result}");
    }
    assert!(drained > 0, "something is dirty at the end");
    assert_eq!(results[0]["setting"]["size"], "10%");
    assert_eq!(results[0]["outcome"]["spec"]["pages"], 511);
    assert_eq!(results[2]["outcome"]["spec"]["pages"], 2048);
    let table = place.run(&format!("{line} --details")).good();
    assert_eq!(table.lines().count(), 13, "{table}");
    assert!(table.contains("clock-migration") && table.contains("WITH DRAIN"), "{table}");
    let csv = fs::read_to_string(place.folder.path().join("out.csv")).unwrap();
    let fields = csv.lines().next().unwrap().split(',').count();
    assert_eq!(csv.lines().count(), 10);
    assert!(csv.lines().all(|line| line.split(',').count() == fields), "{csv}");
    let page = fs::read_to_string(place.folder.path().join("out.html")).unwrap();
    for heading in [
        "<h3>Hit ratio, as in the paper</h3>",
        "<h3>Writes to SCM, normalised, as in the paper</h3>",
        "<h3>Writes to SCM of at most 512 bytes, as in the paper</h3>",
        "<h3>Bytes written to SCM, normalised, as in the paper</h3>",
        "<h3>Elapsed time, as in the paper</h3>",
        "<h3>Elapsed time with a drain</h3>",
        "<h3>Miss ratio</h3>",
        "<h3>Wear</h3>",
        "<h3>Reasons</h3>",
        "dirty_victim",
    ] {
        assert!(page.contains(heading), "{heading} is not there");
    }
    assert_eq!(page.matches("<svg").count(), 8);
    for outside in ["<script", "<link", "src=", "url("] {
        assert!(!page.contains(outside), "the page needs {outside}");
    }
}

#[test]
fn paper_numbers_and_device_come_first() {
    let place = Place::empty();
    generated(&place);
    let line = "sim FOLDER/web.csv.zst --policy hybrid,clock-migration --size 20%,60% \
                --backing hdd,ssd,sd --report FOLDER/out.html --json";
    let document = place.run(line).json();
    let writes = |policy: &str, size: &str| {
        let results = document["results"].as_array().unwrap();
        let found = results.iter().find(|result| {
            let setting = &result["setting"];
            setting["policy"] == policy && setting["size"] == size && setting["backing"] == "sd"
        });
        found.unwrap()["outcome"]["scm"]["writes"].as_f64().unwrap()
    };
    let changes = ["20%", "60%"]
        .map(|size| 100.0 * (writes("hybrid", size) / writes("clock-migration", size) - 1.0));
    let mean = (changes[0] + changes[1]) / 2.0;
    let least = changes[0].min(changes[1]);
    let page = fs::read_to_string(place.folder.path().join("out.html")).unwrap();
    assert_eq!(page.matches("Beside the paper").count(), 3);
    for (line, ours, published) in [("mean", mean, "-11.4%"), ("best", least, "-27.0%")] {
        let cells = format!("<td>SCM writes, {line}<td class=\"n\">{ours:+.1}%<td class=\"n\">");
        let cells = cells + published;
        assert!(page.contains(&cells), "{cells}");
    }
    let [sd, hdd, ssd] = ["on sd</h2>", "on hdd</h2>", "on ssd</h2>"].map(|end| page.find(end));
    assert!(sd.is_some() && sd < hdd && hdd < ssd, "{sd:?} {hdd:?} {ssd:?}");
    let alone =
        place.run("sim FOLDER/web.csv.zst --policy lru --size 50% --report FOLDER/one.html");
    alone.good();
    let page = fs::read_to_string(place.folder.path().join("one.html")).unwrap();
    assert!(!page.contains("Beside the paper"), "there is nothing to compare");
}

#[test]
fn traces_come_from_standard_input() {
    let place = Place::empty();
    let trace = generated(&place);
    let direct = place.run(&format!("sim FOLDER/web.csv.zst {SIM_ARGS} --json")).json();
    // It cannot be read again, even if a file in the folder has this name.
    fs::write(place.folder.path().join("-"), "").unwrap();
    let mut piped = everbyte();
    piped.current_dir(place.folder.path());
    piped.args(["sim", "-", "--json", "--keep", "0"]).args(SIM_ARGS.split(' '));
    piped.stdin(fs::File::open(trace).unwrap());
    let piped = Outcome::of(&mut piped).json();
    for (direct, piped) in
        direct["results"].as_array().unwrap().iter().zip(piped["results"].as_array().unwrap())
    {
        assert_eq!(direct["outcome"], piped["outcome"]);
    }
}

#[test]
fn streamed_trace_equals_kept_trace() {
    let place = Place::empty();
    generated(&place);
    let line = format!("sim FOLDER/web.csv.zst {SIM_ARGS} --json");
    let again = place.run(&format!("{line} --keep 0")).json();
    assert_eq!(again, place.run(&line).json());
}

#[test]
fn text_is_read_by_its_columns() {
    let place = Place::empty();
    let put = |name: &str, text: &str| fs::write(place.folder.path().join(name), text).unwrap();
    put("ours.csv", "0,R,disk,0,4096\n1,W,disk,8192,512\n2,R,disk,4096,4096\n");
    put("other.txt", "size lba what\n4096 0 read\n512 16 WRITE\n4096 8 0\n");
    let columns = "--columns len,offset_sectors,op";
    let figures = |line: &str| place.run(&format!("{line} --policy lru --size 8K --json")).json();
    let (ours, other) =
        (figures("sim FOLDER/ours.csv"), figures(&format!("sim FOLDER/other.txt {columns}")));
    assert_eq!(ours["results"][0]["outcome"], other["results"][0]["outcome"]);
    place
        .run(&format!("sim plan FOLDER/other.txt {columns} --policy lru --out FOLDER/plan"))
        .good();
    place.run("sim run --plan FOLDER/plan --out FOLDER/results").good();
    place.run("sim FOLDER/other.txt").failed(1, &["begins with \"size lba what\"", "--columns"]);
    place.run("sim FOLDER/other.txt --columns lba").failed(2, &["\"lba\" is no column"]);
    place.run(&format!("sim x --format csv {columns}")).failed(2, &["cannot be used with"]);
    put("empty", "");
    place.run("sim FOLDER/empty").failed(1, &["is empty"]);
}

#[test]
fn wrong_traces_are_explained() {
    let place = Place::empty();
    let put = |name: &str, text: &str| fs::write(place.folder.path().join(name), text).unwrap();
    put("cut.csv", "0,W,a,0,512\n1,W,a,0\n");
    put("negative.csv", "0,W,a,0,512\n1,R,a,0,4096\n2,W,a,-8,512\n");
    put("far.csv", "0,W,a,18446744073709551615,512\n");
    put("text", "dear diary\n");
    put("flushes.csv", "0,F,a,0,0\n");
    place.run("sim FOLDER/cut.csv").failed(1, &["cut.csv, line 2", "length is missing"]);
    place.run("sim FOLDER/negative.csv").failed(1, &["line 3", "offset is negative"]);
    place.run("sim info FOLDER/far.csv").failed(1, &["line 1", "2^63"]);
    place.run("sim FOLDER/text").failed(1, &["none of the known formats"]);
    place.run("sim FOLDER/cut.csv --format spc").failed(1, &["line 1", "the address is \"W\""]);
    place.run("sim FOLDER/flushes.csv").failed(1, &["neither reads nor writes"]);
    place.run("sim FOLDER/none.csv").failed(1, &["none.csv", "cannot be read"]);
    place.run("sim").failed(2, &["TRACE"]);
    place.run("sim x --policy best").failed(2, &["best"]);
    place.run("sim x --size 0%").failed(2, &["0%"]);
    place.run("sim x --size 10").failed(2, &["\"10\"", "10%?"]);
    place.run("sim x --size 4K").failed(2, &["2 pages"]);
    place.run("sim x --ratio 1:0").failed(2, &["1:0"]);
    place.run("sim x --threshold 5000").failed(2, &["5000"]);
    place.run("sim generate nothing").failed(2, &["nothing", "webserver"]);
    let mut record = 1_u32.to_le_bytes().to_vec();
    record.extend([7; 8]);
    record.extend(4096_u32.to_le_bytes());
    record.extend((-1_i64).to_le_bytes());
    fs::write(place.folder.path().join("o.bin"), record).unwrap();
    place.run("sim FOLDER/o.bin").failed(1, &["oracle-general", "does not distinguish reads"]);
    place.run("sim info FOLDER/o.bin --assume-reads").good();
}

#[test]
fn sharded_sweep_equals_whole_sweep() {
    let place = Place::empty();
    generated(&place);
    let question = format!("FOLDER/web.csv.zst {SIM_ARGS}");
    let direct = place.run(&format!("sim {question} --json")).good();
    place.run(&format!("sim plan {question} --out FOLDER/plan")).good();
    let plan = fs::read_to_string(place.folder.path().join("plan")).unwrap();
    assert_eq!(plan, place.run(&format!("sim plan {question}")).good(), "a plan is no accident");
    let ids: Vec<String> = plan
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap()["id"].as_str().unwrap().into())
        .collect();
    assert_eq!(ids.len(), 9);

    let run = |part: &str| place.run(&format!("sim run --plan FOLDER/plan --out FOLDER/r {part}"));
    assert_eq!(run("--task-index 4").good(), "simulations: 1 made, 0 were there\n");
    assert_eq!(run("--shard 1/2").good(), "simulations: 4 made, 1 were there\n");
    let merge = "sim merge FOLDER/r --plan FOLDER/plan --json";
    place.run(&format!("{merge} --csv FOLDER/plan")).failed(1, &["plan is what is read"]);
    place.run(merge).failed(1, &["4 of 9 results are missing", "task 1"]);
    assert_eq!(run("--shard 2/2").good(), "simulations: 4 made, 0 were there\n");
    assert_eq!(run("").good(), "simulations: 0 made, 9 were there\n");
    assert_eq!(place.run(merge).good(), direct);
    assert_eq!(place.run("sim merge FOLDER/r --json").good(), direct);
    let mut names: Vec<String> = fs::read_dir(place.folder.path().join("r"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    let mut wanted: Vec<String> = ids.iter().map(|id| format!("{id}.json")).collect();
    wanted.sort();
    assert_eq!(names, wanted, "nothing unfinished stays");

    run("--task-index 9").failed(1, &["there is no task 9", "9, counted from 0"]);
    run("--shard 3/2").failed(2, &["3/2"]);
    let changed = plan.replacen("\"10%\"", "\"11%\"", 1);
    fs::write(place.folder.path().join("changed"), changed).unwrap();
    place
        .run("sim run --plan FOLDER/changed --out FOLDER/r")
        .failed(1, &["changed, line 1", "does not belong to its id"]);
    place.run("sim generate web --requests 5000 --seed 4 --out FOLDER/web.csv.zst").good();
    place
        .run("sim run --plan FOLDER/plan --out FOLDER/other")
        .failed(1, &["is not the trace that the plan was made for"]);
    place.run("sim merge FOLDER/other").failed(1, &["there are no results"]);
    fs::write(place.folder.path().join("r").join(&wanted[0]), "{}").unwrap();
    place.run("sim merge FOLDER/r").failed(1, &[&wanted[0], "is no result"]);
}

#[test]
fn task_planned_twice_runs_once() {
    let place = Place::empty();
    generated(&place);
    let sizes = "--policy hybrid,lru --size 5%,10%,15%,20%,25%,30%,35%,40%";
    let question = format!("FOLDER/web.csv.zst {sizes}");
    let plan = place.run(&format!("sim plan {question}")).good();
    let twice: String = plan.lines().map(|line| format!("{line}\n{line}\n")).collect();
    let path = place.folder.path().join("plan");
    for (folder, plan) in [("each", &twice), ("all", &plan.repeat(2))] {
        fs::write(&path, plan).unwrap();
        let run = format!("sim run --plan FOLDER/plan --out FOLDER/{folder} --threads 8");
        assert_eq!(place.run(&run).good(), "simulations: 16 made, 0 were there\n");
        assert_eq!(place.run(&run).good(), "simulations: 0 made, 16 were there\n");
        let merged = place.run(&format!("sim merge FOLDER/{folder} --json")).good();
        assert_eq!(merged, place.run(&format!("sim {question} --json")).good());
    }
    fs::write(&path, &twice).unwrap();
    let parts = ["1/2", "2/2"].map(|shard| {
        let name = shard.replace('/', "of");
        let run = format!("sim run --plan FOLDER/plan --out FOLDER/{name} --shard {shard}");
        place.run(&run).good();
        let mut results = BTreeMap::new();
        for entry in fs::read_dir(place.folder.path().join(name)).unwrap() {
            let entry = entry.unwrap();
            results.insert(entry.file_name(), fs::read_to_string(entry.path()).unwrap());
        }
        results
    });
    assert_eq!(parts[0].len(), 16);
    assert_eq!(parts[0], parts[1], "the same bytes, whatever part made them");
    fs::write(&path, plan.repeat(2)).unwrap();
    let merged = place.run("sim merge FOLDER/all --plan FOLDER/plan --json").good();
    let both = format!("FOLDER/web.csv.zst {question}");
    assert_eq!(merged, place.run(&format!("sim {both} --json")).good(), "a row for each line");
}

#[test]
fn concurrent_runs_share_results() {
    let (place, direct) = planned();
    let runs: Vec<_> = (0..6)
        .map(|_| {
            let mut command = everbyte();
            command.current_dir(place.folder.path()).args(["sim", "run", "--plan", "plan"]);
            std::thread::spawn(move || Outcome::of(command.args(["--out", "r"])).good())
        })
        .collect();
    runs.into_iter().for_each(|run| _ = run.join().unwrap());
    assert_eq!(place.run("sim merge FOLDER/r --json").good(), direct);
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode();
    let usual = mode(&place.folder.path().join("plan"));
    let results = fs::read_dir(place.folder.path().join("r")).unwrap();
    let modes: Vec<_> = results.map(|entry| mode(&entry.unwrap().path())).collect();
    assert_eq!(modes, [usual; 4], "nothing unfinished stays, and others may read results");
}

#[test]
fn results_follow_order_of_later_plan() {
    let place = Place::empty();
    generated(&place);
    let question = |sizes: &str| format!("FOLDER/web.csv.zst --policy lru,clock --size {sizes}");
    for (plan, sizes) in [("first", "50%,10%"), ("second", "10%,25%,50%")] {
        place.run(&format!("sim plan {} --out FOLDER/{plan}", question(sizes))).good();
        place.run(&format!("sim run --plan FOLDER/{plan} --out FOLDER/r")).good();
        let merged = place.run(&format!("sim merge FOLDER/r --plan FOLDER/{plan} --json")).good();
        assert_eq!(merged, place.run(&format!("sim {} --json", question(sizes))).good(), "{plan}");
    }
    let again = place.run("sim merge FOLDER/r --plan FOLDER/first --json").good();
    assert_eq!(again, place.run(&format!("sim {} --json", question("50%,10%"))).good());
}

#[test]
fn merge_refuses_ambiguous_trace_name() {
    let place = Place::empty();
    let question = "FOLDER/web.csv --policy lru,everbyte --size 10%";
    for seed in [1, 2] {
        let make = format!("sim generate web --requests 3000 --seed {seed} --out FOLDER/web.csv");
        place.run(&make).good();
        place.run(&format!("sim plan {question} --out FOLDER/{seed}")).good();
        place.run(&format!("sim run --plan FOLDER/{seed} --out FOLDER/r")).good();
    }
    let merge = place.run("sim merge FOLDER/r");
    merge.failed(1, &["web.csv: there are results over different traces of this name"]);
    let merged = place.run("sim merge FOLDER/r --plan FOLDER/2 --json").good();
    assert_eq!(merged, place.run(&format!("sim {question} --json")).good());
}

#[test]
fn results_of_other_version_are_refused() {
    let (place, _) = planned();
    let folder = place.folder.path();
    let run = |plan: &str| {
        let mut command = everbyte();
        command.current_dir(folder).args(["sim", "run", "--plan", plan, "--out", "r"]);
        Outcome::of(&mut command)
    };
    run("plan").good();
    let plan = fs::read_to_string(folder.join("plan")).unwrap();
    let first: Value = serde_json::from_str(plan.lines().next().unwrap()).unwrap();
    let version = first["simulator"].as_u64().unwrap();
    let other = |text: &str, space: &str| {
        let [ours, others] =
            [version, version + 1].map(|version| format!("\"simulator\":{space}{version}"));
        assert!(text.contains(&ours), "{ours} is not in {text}");
        text.replace(&ours, &others)
    };
    let words = format!("version {} of the simulator", version + 1);
    fs::write(folder.join("other"), other(&plan, "")).unwrap();
    run("other").failed(1, &["other, line 1", &words, "make a new plan"]);
    let result = folder.join("r").join(format!("{}.json", first["id"].as_str().unwrap()));
    fs::write(&result, other(&fs::read_to_string(&result).unwrap(), " ")).unwrap();
    let name = result.to_str().unwrap();
    place.run("sim merge FOLDER/r").failed(1, &[name, &words]);
    place.run("sim merge FOLDER/r --plan FOLDER/plan").failed(1, &[name, &words]);

    let old = plan.replace("\"version\":2,", "\"version\":1,");
    let old = old.replace(&format!("\"simulator\":{version},"), "");
    fs::write(folder.join("old"), old).unwrap();
    run("old").failed(1, &["old, line 1", "version is 1, not 2"]);
}

/// Neither an existing result nor a possible input of a later merge.
#[test]
fn merge_output_replaces_no_result() {
    let place = Place::empty();
    generated(&place);
    let question = "FOLDER/web.csv.zst --policy lru --size 10%";
    let direct = place.run(&format!("sim {question} --json")).good();
    place.run(&format!("sim plan {question} --out FOLDER/plan")).good();
    place.run("sim run --plan FOLDER/plan --out FOLDER/r").good();
    let folder = place.folder.path();
    let result = fs::read_dir(folder.join("r")).unwrap().next().unwrap().unwrap().path();
    let before = fs::read(&result).unwrap();
    std::os::unix::fs::symlink(&result, folder.join("link")).unwrap();
    for option in [
        format!("--csv {}", result.display()),
        "--report FOLDER/r/new.json".to_owned(),
        "--csv FOLDER/link".to_owned(),
    ] {
        let merge = place.run(&format!("sim merge FOLDER/r {option}"));
        merge.failed(1, &["would be one of the results that are read"]);
    }
    assert_eq!(fs::read(&result).unwrap(), before);
    assert_eq!(place.run("sim merge FOLDER/r --json --csv FOLDER/r/all.csv").good(), direct);
    assert_eq!(place.run("sim merge FOLDER/r --json").good(), direct);
}

#[test]
fn plan_is_overwritten_by_force_only() {
    let place = Place::empty();
    generated(&place);
    let plan = place.folder.path().join("plan");
    fs::write(&plan, "notes").unwrap();
    let line = "sim plan FOLDER/web.csv.zst --policy lru --size 10% --out FOLDER/plan";
    place.run(line).failed(1, &["plan", "exists", "--force"]);
    assert_eq!(fs::read_to_string(&plan).unwrap(), "notes");
    place.run(&format!("{line} --force")).good();
    assert_eq!(fs::read_to_string(&plan).unwrap().lines().count(), 1);
}

/// A shell command in the place's folder, with `everbyte` in its path.
fn shell(place: &Place, script: &str) -> Command {
    let program = Path::new(env!("CARGO_BIN_EXE_everbyte"));
    let path = std::env::var_os("PATH").unwrap();
    let folders = std::iter::once(program.parent().unwrap().to_owned());
    let path = std::env::join_paths(folders.chain(std::env::split_paths(&path))).unwrap();
    let mut command = Command::new("sh");
    command.args(["-c", script, "sh", "plan", "results"]).env("PATH", path);
    command.current_dir(place.folder.path());
    command
}

fn example(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/examples").join(name)
}

/// A place with a plan of four tasks, and the output of the whole sweep.
fn planned() -> (Place, String) {
    let place = Place::empty();
    place.run("sim generate web --requests 3000 --out FOLDER/web.csv").good();
    let question = ["web.csv", "--policy", "hybrid,lru", "--size", "10%,50%"];
    let run = |arguments: &[&str]| {
        let mut command = everbyte();
        command.current_dir(place.folder.path()).arg("sim").args(arguments).args(question);
        Outcome::of(&mut command).good()
    };
    fs::write(place.folder.path().join("plan"), run(&["plan"])).unwrap();
    let direct = run(&["--json"]);
    (place, direct)
}

/// Every number of a result survives being kept, not just those of one trace.
#[test]
fn results_are_kept_exactly() {
    let place = Place::empty();
    for seed in 0..6 {
        let make = format!("sim generate mixed --requests 800 --seed {seed} --out FOLDER/m.csv");
        place.run(&make).good();
        let question = "FOLDER/m.csv --size 7%,33% --ratio 2:7 --backing ssd,sd";
        let direct = place.run(&format!("sim {question} --json")).good();
        place.run(&format!("sim plan {question} --out FOLDER/plan --force")).good();
        place.run(&format!("sim run --plan FOLDER/plan --out FOLDER/{seed}")).good();
        assert_eq!(place.run(&format!("sim merge FOLDER/{seed} --json")).good(), direct);
    }
}

#[test]
fn slurm_example_runs() {
    let (place, direct) = planned();
    let script = fs::read_to_string(example("sweep-slurm.sh")).unwrap();
    for index in 0..4 {
        let mut command = shell(&place, &script);
        Outcome::of(command.env("SLURM_ARRAY_TASK_ID", index.to_string())).good();
    }
    assert_eq!(place.run("sim merge FOLDER/results --json").good(), direct);
}

#[test]
fn kubernetes_example_runs() {
    let (place, direct) = planned();
    let manifest = fs::read_to_string(example("sweep-kubernetes.yaml")).unwrap();
    let command = manifest.lines().find_map(|line| line.trim().strip_prefix("- exec ")).unwrap();
    for field in ["completionMode: Indexed", "completions: 8", "backoffLimitPerIndex:"] {
        assert!(manifest.contains(field), "{field}");
    }
    for index in 0..8 {
        let mut command = shell(&place, command);
        Outcome::of(command.env("JOB_COMPLETION_INDEX", index.to_string())).good();
    }
    assert_eq!(place.run("sim merge FOLDER/results --json").good(), direct);
}

#[test]
fn gnu_parallel_example_runs() {
    let (place, direct) = planned();
    let version = Command::new("parallel").arg("--version").output();
    if !version.is_ok_and(|out| String::from_utf8_lossy(&out.stdout).contains("GNU parallel")) {
        not_run("GNU parallel is not installed");
        return;
    }
    let script = fs::read_to_string(example("sweep-parallel.sh")).unwrap();
    let out = shell(&place, &script).output().unwrap();
    assert!(out.status.success(), "{out:?}");
    assert_eq!(place.run("sim merge FOLDER/results --json").good(), direct);
    assert!(place.folder.path().join("results/all.html").exists());
}

#[test]
fn policies_by_size_fit_a_terminal() {
    let place = Place::empty();
    generated(&place);
    let table = place.run("sim FOLDER/web.csv.zst").good();
    assert!(table.lines().all(|line| line.chars().count() <= 80), "{table}");
    assert!(table.lines().count() < 30, "{table}");
    assert_eq!(table.matches("web.csv.zst").count(), 1, "{table}");
    let folder = place.folder.path().to_str().unwrap();
    assert!(!table.contains(folder), "{table}");
    let heading = table.lines().find(|line| line.starts_with("hits, %")).unwrap();
    let sizes: Vec<&str> = heading.split_whitespace().skip(2).collect();
    assert_eq!(sizes.len(), 10, "{heading}");
    for policy in ["everbyte", "hybrid-drop-unused", "w-tinylfu", "belady"] {
        let line = table.lines().find(|line| line.split(' ').next() == Some(policy)).unwrap();
        assert_eq!(line.split_whitespace().count(), 11, "{line}");
    }
    let best = table.lines().find(|line| line.starts_with("best at 10%")).unwrap();
    assert!(!best.contains("belady"), "{best}");
    let two =
        place.run("sim FOLDER/web.csv.zst --policy lru --size 8K,50% --show time,written").good();
    assert!(two.contains("time, s ") && two.contains("written, 1000 "), "{two}");
}

#[test]
fn report_tells_how_it_was_made() {
    let place = Place::empty();
    let trace = generated(&place);
    let line = format!("sim FOLDER/web.csv.zst {SIM_ARGS} --report FOLDER/out.html");
    place.run(&line).good();
    let page = fs::read_to_string(place.folder.path().join("out.html")).unwrap();
    let bytes = fs::read(&trace).unwrap();
    let checksum = format!("{} bytes, CRC-32C {:08x}", bytes.len(), crc32c::crc32c(&bytes));
    let version = format!("everbyte {}", env!("CARGO_PKG_VERSION"));
    let (_, footer) = page.split_once("<footer>").unwrap();
    for fact in [&checksum, &version, " UTC", "Costs of hdd", "12670000 ns a jump", "--backing hdd"]
    {
        assert!(footer.contains(fact), "{fact}: {footer}");
    }
    let mut piped = everbyte();
    piped.current_dir(place.folder.path()).args(["sim", "-", "--report", "piped.html"]);
    piped.args(SIM_ARGS.split(' ')).stdin(fs::File::open(&trace).unwrap());
    Outcome::of(&mut piped).good();
    let piped = fs::read_to_string(place.folder.path().join("piped.html")).unwrap();
    assert!(piped.contains(&format!("standard input: {checksum}")), "{piped}");
    place.run(&format!("sim plan FOLDER/web.csv.zst {SIM_ARGS} --out FOLDER/plan")).good();
    place.run("sim run --plan FOLDER/plan --out FOLDER/r").good();
    place.run("sim merge FOLDER/r --report FOLDER/merged.html").good();
    let merged = fs::read_to_string(place.folder.path().join("merged.html")).unwrap();
    assert!(merged.contains(&checksum), "{merged}");
}

#[test]
fn report_gives_each_policy_its_own_look() {
    let place = Place::empty();
    place.run("sim generate web --requests 800 --out FOLDER/w.csv").good();
    place.run("sim FOLDER/w.csv --size 20%,60% --report FOLDER/out.html").good();
    let page = fs::read_to_string(place.folder.path().join("out.html")).unwrap();
    let (_, dark) = page.rsplit_once("prefers-color-scheme:dark").unwrap();
    let colors = |style: &str| -> Vec<String> {
        let looks = (0..17).map(|look| {
            let (_, rest) = style.split_once(&format!(".s{look}{{color:")).unwrap();
            rest[..7].to_owned()
        });
        let mut colors: Vec<String> = looks.collect();
        colors.sort_unstable();
        colors.dedup();
        colors
    };
    assert_eq!((colors(&page).len(), colors(dark).len()), (17, 17));
    let (_, legend) = page.split_once("<ul class=\"legend\">").unwrap();
    let (legend, _) = legend.split_once("</ul>").unwrap();
    let mut signs: Vec<&str> = legend.split("<i class=\"").skip(1).map(|i| &i[..5]).collect();
    signs.sort_unstable();
    signs.dedup();
    assert_eq!(signs.len(), 17, "{legend}");
    assert!(page.matches("<title>").count() > 200, "each point tells its value");
    assert!(page.contains("Best policies by size"));
    assert!(!page.contains(".0</text>"), "whole numbers have no decimals");
    let grid = page.matches("class=\"grid\"").count();
    assert!(grid <= 8 * 7, "{grid} grid lines");
}

#[test]
fn hostile_names_are_escaped() {
    let place = Place::empty();
    let trace = generated(&place);
    let name = "<script>alert(1)<|script>&\"'\u{1b}[2J";
    fs::copy(trace, place.folder.path().join(name)).unwrap();
    let mut command = everbyte();
    command.current_dir(place.folder.path()).args(["sim", name, "--report", "out.html"]);
    let table = Outcome::of(command.args(SIM_ARGS.split(' '))).good();
    assert!(!table.contains('\u{1b}'), "{table:?}");
    let page = fs::read_to_string(place.folder.path().join("out.html")).unwrap();
    assert!(!page.contains("<script") && !page.contains('\u{1b}'), "{page}");
    assert!(page.contains("&lt;script&gt;alert(1)"), "{page}");
}

/// Costs of a device with the same speed for each step.
const FLAT: &str = "name = \"flat\"\n[backing]\nread_page_ns = 1000\nread_jump_ns = 0\n\
                    write_page_ns = 1000\nwrite_jump_ns = 0\n";

#[test]
fn file_costs_are_simulated_and_kept() {
    let place = Place::empty();
    generated(&place);
    let costs = place.folder.path().join("flat.toml");
    fs::write(&costs, FLAT).unwrap();
    let question = "FOLDER/web.csv.zst --policy lru,everbyte --size 10% --costs FOLDER/flat.toml";
    let document = place.run(&format!("sim {question} --json")).json();
    let results = document["results"].as_array().unwrap();
    assert_eq!(results.len(), 2);
    let costs = &results[0]["outcome"]["spec"]["costs"]["backing"];
    assert_eq!(costs["read_page_ns"].as_f64(), Some(1000.0));
    assert_eq!(results[0]["setting"]["backing"]["name"], "flat");
    let outcome = &results[0]["outcome"];
    let pages =
        ["pages_read", "pages_written"].map(|key| outcome["backing"][key].as_f64().unwrap());
    let least = 1000.0 * (pages[0] + pages[1]);
    assert!(outcome["elapsed_ns"].as_f64().unwrap() >= least, "{outcome}");
    let both = place.run(&format!("sim {question} --backing nvme --csv FOLDER/out.csv")).good();
    assert!(both.contains("on nvme") && both.contains("on flat"), "{both}");
    let csv = fs::read_to_string(place.folder.path().join("out.csv")).unwrap();
    assert_eq!(csv.lines().filter(|line| line.contains(",flat,")).count(), 2, "{csv}");
    place.run(&format!("sim plan {question} --out FOLDER/plan")).good();
    fs::remove_file(place.folder.path().join("flat.toml")).unwrap();
    place.run("sim run --plan FOLDER/plan --out FOLDER/r").good();
    assert_eq!(place.run("sim merge FOLDER/r --json").json(), document);
}

#[test]
fn wrong_costs_are_explained() {
    let place = Place::empty();
    generated(&place);
    let path = place.folder.path().join("costs.toml");
    let line = "sim FOLDER/web.csv.zst --policy lru --size 10% --costs FOLDER/costs.toml";
    for (text, words) in [
        (FLAT.replace("read_page_ns = 1000", "read_page_ns = -1"), "backing.read_page_ns is -1"),
        (FLAT.replace("write_page_ns = 1000\n", ""), "backing.write_page_ns is missing"),
        (FLAT.replace("flat", "ssd"), "name of a known device"),
        ("[backing".to_owned(), "line 1"),
        ("x".repeat(1 << 20), "it has more than 65536 bytes"),
    ] {
        fs::write(&path, text).unwrap();
        place.run(line).failed(1, &["costs.toml", words]);
    }
    fs::write(&path, [0xff, 0xfe]).unwrap();
    place.run(line).failed(1, &["costs.toml", "is not UTF-8"]);
    fs::remove_file(&path).unwrap();
    place.run(line).failed(1, &["costs.toml", "cannot be read"]);
    assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
    place.run(line).failed(1, &["costs.toml", "it is a named pipe"]);
    place
        .run(&line.replace("FOLDER/costs.toml", "/dev/zero"))
        .failed(1, &["it is a character device"]);
    place.run(&line.replace("FOLDER/costs.toml", "FOLDER")).failed(1, &["it is a directory"]);
    fs::remove_file(&path).unwrap();
    fs::write(&path, FLAT).unwrap();
    let twice = format!("{line} --costs FOLDER/costs.toml");
    place.run(&twice).failed(1, &["another device has the name flat"]);
}
