//! Metrics of a server: the page for Prometheus and `everbyte top`, after known work.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Stdio;
use std::time::{Duration, Instant};

use everbyte_device::Fua;
use rustix::process::Signal;
use serde_json::Value;

use crate::service::activated;
use crate::{Outcome, Place, Running, everbyte};

const METRICS: &str = "--metrics 127.0.0.1:0 --checkpoint-interval 1h";

impl Running {
    /// The address in its line about metrics, the first line after the exports.
    fn metrics(&mut self) -> String {
        loop {
            let line = self.line();
            if let Some(rest) = line.strip_prefix("metrics: http://") {
                return rest.strip_suffix("/metrics").unwrap().to_owned();
            }
            assert!(line.starts_with("ready"), "{line:?}");
        }
    }
}

/// The answer to a request for the page, with its head.
fn get(address: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    write!(stream, "GET /metrics HTTP/1.1\r\nHost: {address}\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

/// The series of the page, with their values.
fn scrape(address: &str) -> BTreeMap<String, f64> {
    let answer = get(address);
    let (head, page) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200 OK"), "{head}");
    assert!(page.ends_with("# EOF\n"), "{page}");
    let lines = page.lines().filter(|line| !line.starts_with('#'));
    let series = lines.map(|line| {
        let (name, value) = line.rsplit_once(' ').unwrap();
        (name.to_owned(), value.parse().unwrap())
    });
    series.collect()
}

/// Writes 20 and reads 5 blocks of `disk`, flushes, and fails to write to `base`.
fn work(place: &Place) {
    let mut disk = place.client("disk");
    for block in 0..20 {
        disk.write(block * 4096, &[7; 4096], Fua::No).unwrap();
    }
    for block in 0..5 {
        disk.read(block * 4096, 4096).unwrap();
    }
    disk.flush().unwrap();
    disk.trim(0, 8192, Fua::No).unwrap();
    disk.write_zeroes(8192, 4096, everbyte_device::Hole::Allowed, false, Fua::No).unwrap();
    place.client("base").write(0, &[7; 512], Fua::No).unwrap_err();
    std::fs::write(place.folder.path().join("letter"), "hello").unwrap();
    place.run("fs put FOLDER/letter POOL/files:/letter").good();
    assert_eq!(place.run("fs cat POOL/files:/letter").good(), "hello");
}

fn place() -> Place {
    let place = Place::with_disk();
    place.run("volume create POOL base --size 2M").good();
    place.run("volume create POOL files --kind fs --size 4M").good();
    place.run("volume create POOL more --kind swap --size 4M").good();
    place
}

/// The page once `disk` has no client: the server sees the end of a connection a moment after its client.
fn scrape_without_clients(address: &str) -> BTreeMap<String, f64> {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let page = scrape(address);
        if page["everbyte_volume_clients{volume=\"disk\"}"] == 0.0 || Instant::now() > deadline {
            return page;
        }
    }
}

/// The number of a member of JSON.
#[track_caller]
fn number(value: &Value, path: &str) -> f64 {
    value.pointer(path).and_then(Value::as_f64).unwrap_or_else(|| panic!("{path} in {value}"))
}

#[test]
fn metrics_after_known_work_are_exact() {
    let place = place();
    let mut server = place.serve("POOL", &format!("{METRICS} --read-only-export base"));
    let address = server.metrics();
    work(&place);
    let page = scrape_without_clients(&address);
    let series = |name: &str, labels: &str| {
        let key = format!("everbyte_{name}{labels}");
        *page.get(&key).unwrap_or_else(|| panic!("{key} is not in {page:#?}"))
    };
    let of = |volume: &str, more: &str| format!("{{volume=\"{volume}\"{more}}}");
    let requests = |name: &str, volume: &str, face: &str, operation: &str| {
        series(name, &of(volume, &format!(",face=\"{face}\",operation=\"{operation}\"")))
    };
    for (volume, face, operation, count, bytes, timed) in [
        ("disk", "nbd", "write", 20.0, 81_920.0, 1.0),
        ("disk", "nbd", "read", 5.0, 20_480.0, 1.0),
        ("disk", "nbd", "flush", 1.0, 0.0, 1.0),
        ("disk", "nbd", "trim", 1.0, 8192.0, 1.0),
        ("disk", "nbd", "write_zeroes", 1.0, 4096.0, 1.0),
        ("base", "nbd", "write", 1.0, 0.0, 1.0),
        ("files", "library", "write", 1.0, 5.0, 1.0),
    ] {
        let found = |name| requests(name, volume, face, operation);
        let place = format!("{operation} of {volume}");
        assert_eq!(found("requests_total"), count, "{place}");
        assert_eq!(found("request_bytes_total"), bytes, "{place}");
        assert_eq!(found("request_duration_seconds_count"), timed, "{place}");
        assert!(found("request_duration_seconds_sum") > 0.0, "{place}");
    }
    let library_reads = requests("request_bytes_total", "files", "library", "read");
    assert_eq!(library_reads, 5.0);
    let refused = of("base", ",face=\"nbd\",cause=\"read_only\"");
    assert_eq!(series("request_errors_total", &refused), 1.0);
    let errors = page.keys().filter(|key| key.starts_with("everbyte_request_errors_total"));
    assert_eq!(errors.count(), 1);

    // The gauges and counters of the engine are those of the commands.
    let (info, stats) = (place.info(), place.run("pool info POOL --stats --json").json());
    for (name, value) in [
        ("pool_size_bytes", number(&info, "/size_bytes")),
        ("pool_free_bytes", number(&info, "/free_bytes")),
        ("pool_provisioned_bytes", number(&info, "/provisioned_bytes")),
        ("pool_low_on_space", 0.0),
        ("volumes_omitted", 0.0),
        ("media_stored_bytes_total", number(&stats, "/medium/bytes_stored")),
        ("media_flushed_lines_total", number(&stats, "/medium/lines_flushed")),
        ("media_fences_total", number(&stats, "/medium/fences")),
    ] {
        assert_eq!(series(name, ""), value, "{name}");
    }
    assert!(series("uptime_seconds", "") >= 0.0);
    for (at, volume) in info["volumes"].as_array().unwrap().iter().enumerate() {
        let labels = of(volume["name"].as_str().unwrap(), "");
        assert_eq!(series("volume_size_bytes", &labels), number(volume, "/size_bytes"));
        assert_eq!(series("volume_used_bytes", &labels), number(volume, "/used_bytes"));
        assert_eq!(series("volume_healthy", &labels), 1.0);
        assert_eq!(series("checkpoint_lines", &labels), number(volume, "/checkpoint_lines"));
        let stats = &stats["volumes"][at];
        assert_eq!(series("checkpoints_total", &labels), number(stats, "/checkpoints"));
        assert_eq!(series("log_written_bytes_total", &labels), number(stats, "/log_bytes"));
        assert!(series("log_used_bytes", &labels) <= series("log_max_bytes", &labels));
    }
    let disk = of("disk", "");
    assert!(series("checkpoints_total", &disk) >= 1.0);
    assert!(series("dirty_lines", &disk) < series("checkpoint_lines", &disk));
    assert_eq!(series("volume_clients", &disk), 0.0);
    assert_eq!(series("swap_lent_bytes", &of("more", "")), 0.0);
    assert_eq!(series("swap_borrowers", &of("more", "")), 0.0);
    let (_, socket) =
        page.iter().find(|(key, _)| key.starts_with("everbyte_server_requests")).unwrap();
    assert_eq!(*socket, 29.0);
    server.stop();
}

#[test]
fn cache_metrics_count_hits_and_write_back() {
    let place = Place::empty();
    place.run("pool create POOL --size 64M").good();
    std::fs::write(place.folder.path().join("slow"), vec![3; 4 << 20]).unwrap();
    let line = "volume create POOL fast --kind cache --backing FOLDER/slow --dram 1M --scm 2M";
    place.run(line).good();
    let mut server = place.serve("POOL", METRICS);
    let address = server.metrics();
    let mut fast = place.client("fast");
    fast.write(0, &[9; 4096], Fua::No).unwrap();
    for _ in 0..4 {
        fast.read(65_536, 4096).unwrap();
    }
    let page = scrape(&address);
    let cache = &place.info()["volumes"][0]["cache"];
    let labels = "{volume=\"fast\"";
    for (name, more, value) in [
        ("cache_hits_total", ",tier=\"dram\"", number(cache, "/counts/hits_dram")),
        ("cache_hits_total", ",tier=\"scm\"", number(cache, "/counts/hits_scm")),
        ("cache_misses_total", "", number(cache, "/counts/misses")),
        ("cache_cached_bytes", "", number(cache, "/cached_bytes")),
        ("cache_dirty_bytes", "", number(cache, "/dirty_bytes")),
        ("cache_errors_total", ",device=\"backing\"", 0.0),
        ("cache_errors_total", ",device=\"scm\"", 0.0),
    ] {
        assert_eq!(page[&format!("everbyte_{name}{labels}{more}}}")], value, "{name}");
    }
    assert!(number(cache, "/counts/misses") >= 1.0 && number(cache, "/counts/hits_dram") >= 3.0);
    assert!(page.contains_key("everbyte_cache_written_back_bytes_total{volume=\"fast\"}"));
    server.stop();
}

#[test]
fn top_prints_figures_of_a_served_pool() {
    let place = place();
    place.run("top POOL --once --json").failed(1, &["is not served"]);
    place.run("top POOL --json").failed(2, &["--once"]);
    let server = place.serve("POOL", "--read-only-export base");
    work(&place);
    let top = place.run("top POOL --once --json").json();
    let volume = |name: &str| {
        let volumes = top["volumes"].as_array().unwrap();
        volumes.iter().find(|volume| volume["name"] == name).unwrap().clone()
    };
    let disk = volume("disk");
    let writes = disk["requests"].as_array().unwrap();
    let writes = writes.iter().find(|found| found["operation"] == "write").unwrap();
    assert_eq!((number(writes, "/requests"), number(writes, "/bytes")), (20.0, 81_920.0));
    assert!(number(writes, "/p99_ns") >= number(writes, "/p50_ns"));
    assert_eq!(volume("base")["errors"][0]["cause"], "read_only");
    assert_eq!(number(&volume("more"), "/lent_bytes"), 0.0);
    let table = place.run("top POOL --once").good();
    for words in ["VOLUME", "P99", "disk", "files", "media bytes per written byte"] {
        assert!(table.contains(words), "{words:?} is not in {table}");
    }
    // Without a terminal, the tables follow each other until a signal.
    let arguments = place.arguments("top POOL --interval 50ms");
    let mut live = Running::begin_with(everbyte().args(arguments), Stdio::inherit());
    let mut headings = 0;
    while headings < 3 {
        headings += usize::from(live.line().starts_with("VOLUME"));
    }
    assert!(live.signal(Signal::INT).success());
    server.stop();
}

#[test]
fn metrics_come_through_a_passed_socket() {
    let place = Place::with_disk();
    let socket = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = socket.local_addr().unwrap();
    let passed = "LISTEN_PID=$$ LISTEN_FDS=1 LISTEN_FDNAMES=metrics";
    // The address of the passed socket is not bound again.
    let line = format!("serve POOL --metrics {address}");
    let mut server = Running::start(&mut activated(&place, socket.into(), passed, &line));
    assert_eq!(server.ready, "ready");
    assert_eq!(server.metrics(), address.to_string());
    assert!(scrape(&address.to_string()).contains_key("everbyte_pool_size_bytes"));
    server.stop();
}

#[test]
fn metrics_address_in_use_or_of_other_kind_fails() {
    let place = Place::with_disk();
    let socket = TcpListener::bind("127.0.0.1:0").unwrap();
    let line = format!("serve POOL --metrics {}", socket.local_addr().unwrap());
    place.run(&line).failed(1, &["cannot serve metrics on 127.0.0.1:"]);
    place.run("serve POOL --metrics unix:/run/x").failed(2, &["use HOST:PORT"]);
    let unix = std::os::unix::net::UnixListener::bind(place.socket()).unwrap();
    let passed = "LISTEN_PID=$$ LISTEN_FDS=1 LISTEN_FDNAMES=metrics";
    let mut command = activated(&place, unix.into(), passed, "serve POOL");
    Outcome::of(&mut command).failed(1, &["not a listening TCP socket"]);
    assert_eq!(place.info()["clean"], true);
}
