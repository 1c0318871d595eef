//! A slow second reader of traces, for the expected counts of the first one.
//!
//! It gets the format, makes one pass and trusts the first reader for values without effect on a
//! count, such as times. Words are split and parsed by the standard library alone.

use everbyte_policy::trace::Format;

/// Counts of a trace: reads, their bytes, writes, their bytes, flushes, trims.
pub(crate) type Counts = [u64; 6];

/// Reads `bytes` as a trace of `format`; `None` if it cannot be one.
pub(crate) fn counts(format: Format, bytes: &[u8], request_max: u64) -> Option<Counts> {
    let mut tally = Tally { counts: [0; 6], request_max };
    match format {
        Format::VscsiV1 => tally.vscsi(bytes, 32, 12, 4)?,
        Format::VscsiV2 => tally.vscsi(bytes, 40, 0, 8)?,
        Format::OracleGeneral => tally.oracle_general(bytes)?,
        Format::Lcs => tally.lcs(bytes)?,
        Format::Mobibench => tally.mobibench(&lines(bytes))?,
        Format::Blkparse => tally.blkparse(bytes)?,
        Format::Kvcache => tally.kvcache(&lines(bytes))?,
        other => {
            for line in lines(bytes) {
                tally.line(other, &line)?;
            }
        }
    }
    Some(tally.counts)
}

/// Lines with something in them.
fn lines(bytes: &[u8]) -> Vec<String> {
    let text = String::from_utf8_lossy(bytes).into_owned();
    let text = text.strip_prefix('\u{feff}').unwrap_or(&text);
    let is_comment = |line: &str| match line.chars().next() {
        Some(' ' | '\t') => line.trim_start().starts_with('#'),
        first => matches!(first, Some('#' | '*')),
    };
    let lines = text.split('\n').map(str::trim_end);
    lines.filter(|line| !line.is_empty() && !is_comment(line)).map(str::to_owned).collect()
}

fn little(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |sum, byte| sum * 256 + u64::from(*byte))
}

fn of_number(text: &str) -> Option<u64> {
    text.trim().parse().ok()
}

struct Tally {
    counts: Counts,
    request_max: u64,
}

impl Tally {
    fn add(&mut self, op: char, len: u64) {
        match op {
            'R' => {
                self.counts[0] += 1;
                self.counts[1] += len;
            }
            'W' => {
                self.counts[2] += 1;
                self.counts[3] += len;
            }
            'F' => self.counts[4] += 1,
            _ => self.counts[5] += 1,
        }
    }

    fn object(&mut self, op: char, len: u64, times: u64) {
        // The first reader skips such objects, and counts nothing of them.
        if len > self.request_max || times == 0 || (len == 0 && op != 'T') {
            return;
        }
        for _ in 0..times {
            match op {
                'T' => self.add('T', 0),
                // The first reader requests objects page by page: they have no addresses on a disk.
                _ => (0..len.div_ceil(4096)).for_each(|k| self.add(op, (len - k * 4096).min(4096))),
            }
        }
    }

    fn vscsi(&mut self, bytes: &[u8], size: usize, command: usize, len: usize) -> Option<()> {
        for record in bytes.chunks(size) {
            let bytes = little(record.get(len..len + 4)?);
            match record.get(command)? {
                0x08 | 0x28 | 0x88 | 0xA8 => self.add('R', bytes),
                0x0A | 0x2A | 0x2E | 0x8A | 0x8E | 0xAA | 0xAE => self.add('W', bytes),
                0x35 | 0x91 => self.add('F', 0),
                _ => {}
            }
        }
        Some(())
    }

    fn oracle_general(&mut self, bytes: &[u8]) -> Option<()> {
        for record in bytes.chunks(24) {
            self.object('R', little(record.get(12..16)?), 1);
        }
        Some(())
    }

    /// Only the form since version 1: the header distinguishes the first one.
    fn lcs(&mut self, bytes: &[u8]) -> Option<()> {
        let version = little(bytes.get(8..16)?);
        let has_new_end = bytes.get(8184..8192) == bytes.get(..8);
        // The magic stands at both ends of the header since version 1.
        if !has_new_end || !(1..=8).contains(&version) {
            return None;
        }
        let size = [24, 28, 36, 40, 44, 52, 68, 100][version as usize - 1];
        for record in bytes[8192..].chunks(size) {
            if record.len() < size {
                return None;
            }
            // Sizes of objects have 4 bytes in the first two versions, and 8 later.
            let len = if version < 3 { &record[12..16] } else { &record[12..20] };
            let op = match (version, record[if version == 2 { 16 } else { 20 }]) {
                (1, _) => 'R',
                (_, 3..=8 | 10 | 11 | 13 | 14) => 'W',
                (_, 9) => 'T',
                _ => 'R',
            };
            self.object(op, little(len), 1);
        }
        Some(())
    }

    fn line(&mut self, format: Format, line: &str) -> Option<()> {
        let commas: Vec<&str> = line.split(',').map(str::trim).collect();
        let words: Vec<&str> = line.split_whitespace().collect();
        let letter = |text: &str| text.chars().next().map(|letter| letter.to_ascii_uppercase());
        match format {
            Format::Csv if commas[0] == "time_ns" => {}
            Format::Csv => match (commas.as_slice(), commas.get(1)) {
                ([_, op, _, _, len], _) => {
                    let op = if *op == "Z" { 'W' } else { letter(op)? };
                    self.add(op, of_number(len)?);
                }
                _ => return None,
            },
            Format::Msr if commas[0] == "Timestamp" => {}
            Format::Msr => self.add(letter(commas.get(3)?)?, of_number(commas.get(5)?)?),
            Format::Spc => self.add(letter(commas.get(3)?)?, of_number(commas.get(2)?)?),
            Format::Alibaba if commas[0] == "device_id" => {}
            Format::Alibaba => self.add(letter(commas.get(1)?)?, of_number(commas.get(3)?)?),
            Format::Systor if commas[0] == "Timestamp" || commas.get(2) == Some(&"") => {}
            Format::Systor => self.add(letter(commas.get(2)?)?, of_number(commas.get(5)?)?),
            Format::Disksim => {
                // Bit 0 of the flags is the direction, so an odd last digit is a read.
                let flags = words.get(4)?.trim_start_matches("0x");
                let is_read = "13579bdfBDF".contains(flags.chars().last()?);
                self.add(if is_read { 'R' } else { 'W' }, of_number(words.get(3)?)? * 512);
            }
            Format::Fiu => {
                // Names of processes may contain spaces and single letters, so the last letter
                // counts.
                let place = words.iter().rposition(|word| ["R", "r", "W", "w"].contains(word))?;
                self.add(letter(words[place])?, of_number(words[place - 1])? * 512);
            }
            Format::Twitter => {
                // Keys may contain commas, so fields are counted from the end.
                let n = commas.len();
                let len = of_number(commas.get(n.checked_sub(5)?)?)? + of_number(commas[n - 4])?;
                self.object(key_operation(commas[n - 2])?, len, 1);
            }
            Format::Fio => self.fio(&words)?,
            _ => return None,
        }
        Some(())
    }

    fn fio(&mut self, words: &[&str]) -> Option<()> {
        let action = words.iter().skip(1).find(|word| {
            ["read", "write", "trim", "sync", "datasync", "sync_file_range"].contains(*word)
        });
        let is_it = |wanted: &str| words.get(1) == Some(&wanted) || words.get(2) == Some(&wanted);
        match action {
            _ if words[0] == "fio" && is_it("version") => {}
            // These lines of fio's log describe files and pauses, and request nothing.
            _ if ["add", "open", "close", "wait"].into_iter().any(is_it) && words.len() < 6 => {}
            Some(&"read") => self.add('R', of_number(words.last()?)?),
            Some(&"write") => self.add('W', of_number(words.last()?)?),
            Some(&"trim") => self.add('T', 0),
            Some(_) => self.add('F', 0),
            None => return None,
        }
        Some(())
    }

    fn kvcache(&mut self, lines: &[String]) -> Option<()> {
        let mut names: Vec<String> = Vec::new();
        for line in lines {
            let fields: Vec<String> =
                line.split(',').map(|field| field.trim().to_owned()).collect();
            // Columns have no fixed order, and a later heading may change it.
            let is_heading = ["key", "op", "size", "op_count", "key_size"]
                .iter()
                .all(|name| fields.iter().any(|field| field == name));
            if is_heading {
                names = fields;
                continue;
            }
            let value = |name: &str| fields.get(names.iter().position(|other| other == name)?);
            let len = of_number(value("size")?)? + of_number(value("key_size")?)?;
            self.object(key_operation(value("op")?)?, len, of_number(value("op_count")?)?);
        }
        Some(())
    }

    fn blkparse(&mut self, bytes: &[u8]) -> Option<()> {
        let lines = lines(bytes);
        // The action is chosen among all lines, comments too.
        let text = String::from_utf8_lossy(bytes).into_owned();
        let has = |action: &&&str| {
            text.lines().any(|line| line.split_whitespace().nth(5) == Some(**action))
        };
        let action = *["Q", "D", "C"].iter().find(has).unwrap_or(&"Q");
        for line in &lines {
            let words: Vec<&str> = line.split_whitespace().collect();
            let is_device = words.first()?.chars().all(|c| c.is_ascii_digit() || c == ',');
            if !is_device || words.get(5) != Some(&action) {
                continue;
            }
            let rwbs = *words.get(6)?;
            // A leading F is a flush before the request. An F alone is a flush.
            let plain = rwbs.strip_prefix('F').unwrap_or(rwbs);
            let op = match plain.chars().next() {
                Some('R') => 'R',
                Some('W') => 'W',
                Some('D') => 'T',
                Some('Z') if plain.starts_with("ZA") => 'W',
                Some('Z') => continue,
                _ if rwbs.starts_with('F') => 'F',
                _ => continue,
            };
            match (words.get(8), words.get(9)) {
                (Some(&"+"), Some(sectors)) => match of_number(sectors)? * 512 {
                    0 => {}
                    len => self.add(op, len),
                },
                _ if rwbs.contains('F') => self.add('F', 0),
                _ => {}
            }
        }
        Some(())
    }

    fn mobibench(&mut self, lines: &[String]) -> Option<()> {
        let mut files: Vec<u64> = Vec::new();
        let mut calls = Vec::new();
        for line in lines {
            let words: Vec<&str> = line.split_whitespace().collect();
            let (call, arguments) = (*words.get(2)?, &words[3..]);
            let fd = arguments.first().and_then(|word| of_number(word));
            let op = match call {
                "read" | "pread" | "pread64" => 'R',
                "write" | "pwrite" | "pwrite64" => 'W',
                "fsync" | "fdatasync" => 'F',
                _ => continue,
            };
            let last = *arguments.last()?;
            if op != 'F' && last == "-1" {
                continue;
            }
            if call.starts_with('p') {
                files.push(fd?);
            }
            calls.push((fd?, op, if op == 'F' { 0 } else { of_number(last)? }));
        }
        // Only files with positioned calls count, and the first such call may follow others of its
        // file.
        for (fd, op, len) in calls {
            if files.contains(&fd) {
                self.add(op, len);
            }
        }
        Some(())
    }
}

fn key_operation(word: &str) -> Option<char> {
    match &*word.to_lowercase() {
        "get" | "gets" | "get_lease" => Some('R'),
        "delete" => Some('T'),
        "set" | "set_lease" | "add" | "cas" | "replace" | "append" | "prepend" | "incr"
        | "decr" | "update" => Some('W'),
        _ => None,
    }
}
