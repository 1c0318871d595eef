//! The page of metrics: `OpenMetrics` text of the figures of a pool.
//!
//! Invariant: a page has every family, also a family without a series. Names never depend on the pool.

use std::fmt;
use std::time::Duration;

use everbyte_control::{CacheMetrics, PoolMetrics, VolumeMetrics};
use everbyte_device::meter::latency_bound_ns;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};

/// Bytes of a page of the cache.
const PAGE_BYTES: u64 = 4096;

/// Returns the page of these figures, in the text format of `OpenMetrics` 1.0.
#[must_use]
pub fn page(metrics: PoolMetrics) -> String {
    let mut registry = Registry::with_prefix("everbyte");
    registry.register_collector(Box::new(Page(metrics)));
    let mut text = String::new();
    // A string takes any text.
    encode(&mut text, &registry).expect("writing to a string does not fail");
    text
}

#[derive(Debug)]
struct Page(PoolMetrics);

impl Collector for Page {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut families = Families(encoder);
        families.pool(&self.0)?;
        families.servers(&self.0)?;
        families.requests(&self.0.volumes)?;
        families.volumes(&self.0.volumes)?;
        families.caches(&self.0.volumes)
    }
}

struct Families<'a>(DescriptorEncoder<'a>);

type Label<'l> = (&'static str, &'l str);
/// A count of a cache.
type CacheCount = fn(&CacheMetrics) -> u64;

impl Families<'_> {
    fn counter<'l, const N: usize>(
        &mut self,
        (name, unit): (&str, Option<Unit>),
        help: &str,
        series: impl IntoIterator<Item = ([Label<'l>; N], u64)>,
    ) -> fmt::Result {
        let mut family =
            self.0.encode_descriptor(name, help, unit.as_ref(), MetricType::Counter)?;
        for (labels, value) in series {
            if N == 0 {
                family.encode_counter::<NoLabelSet, u64, f64>(&value, None)?;
            } else {
                let mut series = family.encode_family(&labels)?;
                series.encode_counter::<NoLabelSet, u64, f64>(&value, None)?;
            }
        }
        Ok(())
    }

    fn gauge<'l, const N: usize>(
        &mut self,
        (name, unit): (&str, Option<Unit>),
        help: &str,
        series: impl IntoIterator<Item = ([Label<'l>; N], u64)>,
    ) -> fmt::Result {
        let mut family = self.0.encode_descriptor(name, help, unit.as_ref(), MetricType::Gauge)?;
        for (labels, value) in series {
            if N == 0 {
                family.encode_gauge(&value)?;
            } else {
                family.encode_family(&labels)?.encode_gauge(&value)?;
            }
        }
        Ok(())
    }

    fn pool(&mut self, pool: &PoolMetrics) -> fmt::Result {
        let uptime = pool.uptime_ms / 1000;
        self.gauge(
            ("uptime", Some(Unit::Seconds)),
            "Time since the pool was opened",
            [([], uptime)],
        )?;
        let bytes = || Some(Unit::Bytes);
        self.gauge(("pool_size", bytes()), "Size of the pool", [([], pool.size_bytes)])?;
        self.gauge(("pool_free", bytes()), "Free space of the pool", [([], pool.free_bytes)])?;
        self.gauge(
            ("pool_provisioned", bytes()),
            "Sum of the sizes of all volumes",
            [([], pool.provisioned_bytes)],
        )?;
        self.gauge(
            ("pool_low_on_space", None),
            "1 if little space is free",
            [([], u64::from(pool.low_on_space))],
        )?;
        self.gauge(
            ("volumes_omitted", None),
            "Volumes without metrics, because the pool has too many",
            [([], pool.omitted_volumes)],
        )?;
        let medium = &pool.medium;
        self.counter(
            ("media_stored", bytes()),
            "Bytes stored to the medium, with logs and maps",
            [([], medium.bytes_stored)],
        )?;
        self.counter(
            ("media_flushed_lines", None),
            "Lines of 64 bytes flushed to the medium",
            [([], medium.lines_flushed)],
        )?;
        self.counter(("media_fences", None), "Fences of the medium", [([], medium.fences)])
    }

    fn servers(&mut self, pool: &PoolMetrics) -> fmt::Result {
        let each = |count: fn(&everbyte_control::ServerStats) -> u64| {
            let servers = pool.servers.iter();
            servers.map(move |server| ([("address", server.address.as_str())], count(server)))
        };
        self.gauge(
            ("server_connections", None),
            "Open NBD connections",
            each(|server| server.connections),
        )?;
        self.counter(
            ("server_connections_accepted", None),
            "Accepted NBD connections",
            each(|server| server.connections_total),
        )?;
        self.counter(
            ("server_connections_dropped", None),
            "NBD connections ended because of the peer",
            each(|server| server.connections_dropped),
        )?;
        self.counter(
            ("server_requests", None),
            "NBD requests, failed ones included",
            each(|server| server.requests),
        )?;
        self.counter(
            ("server_errors", None),
            "NBD requests answered with an error, invalid ones included",
            each(|server| server.errors),
        )
    }

    fn requests(&mut self, volumes: &[VolumeMetrics]) -> fmt::Result {
        let each = |count: fn(&everbyte_control::RequestMetrics) -> u64| {
            volumes.iter().flat_map(move |volume| {
                let requests = volume.requests.iter();
                requests.map(move |found| (labels_of(volume, found), count(found)))
            })
        };
        self.counter(
            ("requests", None),
            "Requests to volumes, failed ones included",
            each(|found| found.requests),
        )?;
        self.counter(
            ("request", Some(Unit::Bytes)),
            "Bytes of successful requests",
            each(|found| found.bytes),
        )?;
        let errors = volumes.iter().flat_map(|volume| {
            volume.errors.iter().map(|found| {
                let labels = [
                    ("volume", volume.name.as_str()),
                    ("face", found.face.as_str()),
                    ("cause", found.cause.as_str()),
                ];
                (labels, found.count)
            })
        });
        self.counter(("request_errors", None), "Failed requests by cause", errors)?;
        let mut family = self.0.encode_descriptor(
            "request_duration",
            "Time of requests in their volume: one of 32 reads, writes, look-ups and requests for attributes, \
             and each other request",
            Some(&Unit::Seconds),
            MetricType::Histogram,
        )?;
        for volume in volumes {
            for found in &volume.requests {
                let buckets: Vec<(f64, u64)> = found
                    .buckets
                    .iter()
                    .enumerate()
                    .map(|(at, count)| {
                        (latency_bound_ns(at).map_or(f64::INFINITY, seconds), *count)
                    })
                    .collect();
                let labels = labels_of(volume, found);
                family.encode_family(&labels)?.encode_histogram::<NoLabelSet>(
                    seconds(found.timed_ns),
                    found.buckets.iter().sum(),
                    &buckets,
                    None,
                )?;
            }
        }
        Ok(())
    }

    fn volumes(&mut self, volumes: &[VolumeMetrics]) -> fmt::Result {
        let each = |count: fn(&VolumeMetrics) -> Option<u64>| {
            volumes.iter().filter_map(move |volume| Some((labels(volume), count(volume)?)))
        };
        let bytes = || Some(Unit::Bytes);
        self.gauge(
            ("volume_healthy", None),
            "1 if neither the volume nor its backing device has a problem",
            each(|volume| Some(u64::from(volume.healthy))),
        )?;
        self.gauge(("volume_size", bytes()), "Size of a volume", each(|v| Some(v.size_bytes)))?;
        self.gauge(
            ("volume_used", bytes()),
            "Space of the pool in use by data and map",
            each(|volume| volume.used_bytes),
        )?;
        self.gauge(("volume_clients", None), "Clients of a volume", each(|v| Some(v.clients)))?;
        self.gauge(
            ("log_used", bytes()),
            "Bytes in use in the fullest lane of the log in the current epoch",
            each(|volume| Some(volume.log_used_bytes)),
        )?;
        self.gauge(
            ("log_max", bytes()),
            "Bytes of a lane of the log for one epoch",
            each(|volume| Some(volume.log_max_bytes)),
        )?;
        self.counter(
            ("log_written", bytes()),
            "Bytes of records written to the log",
            each(|volume| Some(volume.log_bytes)),
        )?;
        self.counter(("checkpoints", None), "Checkpoints", each(|v| Some(v.checkpoints)))?;
        self.gauge(
            ("dirty_lines", None),
            "Dirty lines of 64 bytes, for the next checkpoint",
            each(|volume| Some(volume.dirty_lines)),
        )?;
        self.gauge(
            ("checkpoint_lines", None),
            "Dirty lines at which a background checkpoint begins",
            each(|volume| Some(volume.checkpoint_lines)),
        )?;
        self.gauge(
            ("swap_lent", bytes()),
            "Bytes of a swap volume lent to programs",
            each(|volume| volume.lent_bytes),
        )?;
        self.gauge(
            ("swap_borrowers", None),
            "Processes with leases of a swap volume",
            each(|volume| volume.borrowers),
        )
    }

    fn caches(&mut self, volumes: &[VolumeMetrics]) -> fmt::Result {
        let caches = || volumes.iter().filter_map(|v| Some((v, v.cache.as_ref()?)));
        let each =
            |count: CacheCount| caches().map(move |(volume, cache)| (labels(volume), count(cache)));
        let split = |name, values: [(&'static str, CacheCount); 2]| {
            caches().flat_map(move |(volume, cache)| {
                values.map(|(value, count)| {
                    ([("volume", volume.name.as_str()), (name, value)], count(cache))
                })
            })
        };
        let bytes = || Some(Unit::Bytes);
        self.counter(
            ("cache_hits", None),
            "Accesses with the page in the cache",
            split("tier", [("dram", |cache| cache.hits_dram), ("scm", |cache| cache.hits_scm)]),
        )?;
        self.counter(
            ("cache_misses", None),
            "Accesses without the page in the cache",
            each(|cache| cache.misses),
        )?;
        self.gauge(("cache_cached", bytes()), "Cached bytes", each(|cache| cache.cached_bytes))?;
        self.gauge(
            ("cache_dirty", bytes()),
            "Cached bytes that the backing device lacks",
            each(|cache| cache.dirty_bytes),
        )?;
        self.counter(
            ("cache_written_back", bytes()),
            "Bytes written back to the backing device",
            each(|cache| cache.written_back_pages * PAGE_BYTES),
        )?;
        self.counter(
            ("cache_errors", None),
            "Failed accesses by device",
            split(
                "device",
                [("backing", |cache| cache.backing_errors), ("scm", |cache| cache.scm_errors)],
            ),
        )
    }
}

fn labels(volume: &VolumeMetrics) -> [Label<'_>; 1] {
    [("volume", &volume.name)]
}

fn labels_of<'l>(
    volume: &'l VolumeMetrics,
    found: &'l everbyte_control::RequestMetrics,
) -> [Label<'l>; 3] {
    [("volume", &volume.name), ("face", &found.face), ("operation", &found.operation)]
}

fn seconds(ns: u64) -> f64 {
    Duration::from_nanos(ns).as_secs_f64()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use everbyte_control::{ErrorMetrics, RequestMetrics, ServerStats};
    use everbyte_device::meter::ErrorCause;

    use super::*;

    /// Figures with each series once. Each value differs.
    fn metrics() -> PoolMetrics {
        let request = RequestMetrics {
            face: "nbd".to_owned(),
            operation: "write".to_owned(),
            requests: 31,
            bytes: 32,
            timed_ns: 1_500,
            buckets: [&[0, 3][..], &[0; 23]].concat(),
            ..RequestMetrics::default()
        };
        let error =
            ErrorMetrics { face: "nbd".to_owned(), cause: "no_space".to_owned(), count: 33 };
        let volume = VolumeMetrics {
            name: "a\"b\\c\n".to_owned(),
            healthy: true,
            size_bytes: 41,
            used_bytes: Some(42),
            clients: 43,
            log_used_bytes: 44,
            log_max_bytes: 45,
            log_bytes: 46,
            checkpoints: 47,
            dirty_lines: 48,
            checkpoint_lines: 49,
            lent_bytes: Some(50),
            borrowers: Some(51),
            cache: Some(CacheMetrics {
                cached_bytes: 61,
                dirty_bytes: 62,
                hits_dram: 63,
                hits_scm: 64,
                misses: 65,
                written_back_pages: 2,
                backing_errors: 67,
                scm_errors: 68,
            }),
            requests: vec![request],
            errors: vec![error],
            ..VolumeMetrics::default()
        };
        let server = ServerStats {
            address: "tcp:127.0.0.1:1".to_owned(),
            connections: 21,
            connections_total: 22,
            connections_dropped: 23,
            requests: 24,
            errors: 25,
            flushes: 26,
            read_bytes: 27,
            written_bytes: 28,
        };
        let medium = everbyte_control::MediumStats {
            bytes_stored: 11,
            lines_flushed: 12,
            fences: 13,
            ..everbyte_control::MediumStats::default()
        };
        PoolMetrics {
            pool: "p".to_owned(),
            uptime_ms: 7_900,
            size_bytes: 1,
            free_bytes: 2,
            provisioned_bytes: 3,
            low_on_space: true,
            medium,
            servers: vec![server],
            volumes: vec![volume],
            omitted_volumes: 5,
        }
    }

    #[test]
    fn page_has_each_figure_and_escapes_names() {
        let page = page(metrics());
        let name = r#"volume="a\"b\\c\n""#;
        let wanted = [
            "uptime_seconds 7",
            "pool_size_bytes 1",
            "pool_free_bytes 2",
            "pool_provisioned_bytes 3",
            "pool_low_on_space 1",
            "volumes_omitted 5",
            "media_stored_bytes_total 11",
            "media_flushed_lines_total 12",
            "media_fences_total 13",
            "server_connections{address=\"tcp:127.0.0.1:1\"} 21",
            "server_connections_accepted_total{address=\"tcp:127.0.0.1:1\"} 22",
            "server_connections_dropped_total{address=\"tcp:127.0.0.1:1\"} 23",
            "server_requests_total{address=\"tcp:127.0.0.1:1\"} 24",
            "server_errors_total{address=\"tcp:127.0.0.1:1\"} 25",
            "requests_total{NAME,face=\"nbd\",operation=\"write\"} 31",
            "request_bytes_total{NAME,face=\"nbd\",operation=\"write\"} 32",
            "request_errors_total{NAME,face=\"nbd\",cause=\"no_space\"} 33",
            "request_duration_seconds_sum{NAME,face=\"nbd\",operation=\"write\"} 0.0000015",
            "request_duration_seconds_count{NAME,face=\"nbd\",operation=\"write\"} 3",
            "request_duration_seconds_bucket{le=\"0.000001\",NAME,face=\"nbd\",operation=\"write\"} 3",
            "request_duration_seconds_bucket{le=\"+Inf\",NAME,face=\"nbd\",operation=\"write\"} 3",
            "volume_healthy{NAME} 1",
            "volume_size_bytes{NAME} 41",
            "volume_used_bytes{NAME} 42",
            "volume_clients{NAME} 43",
            "log_used_bytes{NAME} 44",
            "log_max_bytes{NAME} 45",
            "log_written_bytes_total{NAME} 46",
            "checkpoints_total{NAME} 47",
            "dirty_lines{NAME} 48",
            "checkpoint_lines{NAME} 49",
            "swap_lent_bytes{NAME} 50",
            "swap_borrowers{NAME} 51",
            "cache_cached_bytes{NAME} 61",
            "cache_dirty_bytes{NAME} 62",
            "cache_hits_total{NAME,tier=\"dram\"} 63",
            "cache_hits_total{NAME,tier=\"scm\"} 64",
            "cache_misses_total{NAME} 65",
            "cache_written_back_bytes_total{NAME} 8192",
            "cache_errors_total{NAME,device=\"backing\"} 67",
            "cache_errors_total{NAME,device=\"scm\"} 68",
        ];
        for wanted in wanted {
            let wanted = format!("everbyte_{}", wanted.replace("NAME", name));
            assert!(page.lines().any(|line| line == wanted), "{wanted} is not in\n{page}");
        }
        let buckets = page.lines().filter(|line| line.contains("_bucket{")).count();
        let series = page.lines().filter(|line| !line.starts_with('#')).count();
        assert_eq!((buckets, series), (25, wanted.len() - 2 + 25));
        assert!(page.ends_with("\n# EOF\n"), "{page}");
    }

    #[test]
    fn page_without_volumes_has_all_families() {
        let names = |metrics| {
            let page = page(metrics);
            let types = page.lines().filter(|line| line.starts_with("# TYPE "));
            types.map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(names(PoolMetrics::default()), names(metrics()));
        let mut sorted = names(metrics());
        sorted.sort_unstable();
        sorted.dedup();
        assert_eq!(sorted.len(), 36);
    }

    /// Names of series in a text of queries.
    fn names_in(text: &str) -> BTreeSet<&str> {
        let is_part = |c: char| c.is_ascii_lowercase() || c == '_';
        let starts = text.match_indices("everbyte_").map(|(at, _)| &text[at..]);
        starts.map(|rest| rest.split(|c| !is_part(c)).next().unwrap_or_default()).collect()
    }

    #[test]
    fn dashboard_and_alerts_use_exactly_the_series() {
        let page = page(metrics());
        let lines = page.lines().filter(|line| !line.starts_with('#'));
        let served: BTreeSet<_> =
            lines.map(|line| line.split(['{', ' ']).next().unwrap_or_default()).collect();
        let examples = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/examples/");
        let read = |name: &str| std::fs::read_to_string(format!("{examples}{name}")).unwrap();
        let (dashboard, alerts) = (read("everbyte-dashboard.json"), read("everbyte-alerts.yml"));
        assert_eq!(names_in(&dashboard), served);
        let unknown: Vec<_> = names_in(&alerts).difference(&served).copied().collect();
        assert!(unknown.is_empty(), "{unknown:?}");
        assert!(names_in(&alerts).len() >= 8, "{alerts}");
    }

    #[test]
    fn queries_use_known_labels_and_causes() {
        let page = page(metrics());
        let examples = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/examples/");
        let read = |name: &str| std::fs::read_to_string(format!("{examples}{name}")).unwrap();
        let queries = read("everbyte-dashboard.json") + &read("everbyte-alerts.yml");
        let causes: Vec<_> = ErrorCause::ALL.iter().map(|cause| cause.name()).collect();
        for (_, rest) in
            queries.match_indices("cause=\"").map(|(at, key)| queries[at..].split_at(key.len()))
        {
            let cause = rest.split('"').next().unwrap_or_default();
            assert!(causes.contains(&cause), "{cause}");
        }
        // Prometheus adds `instance`.
        for rest in queries.split("sum by (").skip(1) {
            for label in rest.split(')').next().unwrap_or_default().split(", ") {
                let is_known = label == "instance" || page.contains(&format!("{label}=\""));
                assert!(is_known, "{label}");
            }
        }
    }
}
