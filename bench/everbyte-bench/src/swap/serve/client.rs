//! The text protocols of redis-server and memcached, as far as they are needed; several requests may be on
//! their way at once, and are answered in their order.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::Program;

/// Bytes of a value.
pub(super) const VALUE_LEN: usize = 1024;
/// The longest time to wait for an answer.
const ANSWER_TIME_MAX: Duration = Duration::from_mins(1);
/// The most that a server may say instead of a value.
const ANSWER_LEN_MAX: usize = 1 << 20;

/// A request.
#[derive(Clone, Copy, Debug)]
pub(super) enum Request {
    /// Stores the value of a key's turn.
    Store {
        key: u64,
        turn: u32,
    },
    Load {
        key: u64,
    },
}

/// The value of a key's turn: half of it is random, so that it compresses about 2:1.
pub(super) fn value(key: u64, turn: u32) -> [u8; VALUE_LEN] {
    let mut value = [b'v'; VALUE_LEN];
    let mut random = SmallRng::seed_from_u64(key << 32 | u64::from(turn));
    random.fill_bytes(&mut value[..VALUE_LEN / 2]);
    value
}

/// A connection to a server.
pub(super) struct Connection {
    program: Program,
    stream: UnixStream,
    answers: BufReader<UnixStream>,
    /// Requests that are about to be sent, and the answer that was read last.
    outgoing: Vec<u8>,
    answer: Vec<u8>,
}

impl Connection {
    /// # Errors
    /// Nobody listens.
    pub(super) fn open(program: Program, socket: &Path) -> Result<Self> {
        let stream = UnixStream::connect(socket)
            .with_context(|| format!("cannot connect to {}", program.name()))?;
        stream.set_read_timeout(Some(ANSWER_TIME_MAX))?;
        stream.set_write_timeout(Some(ANSWER_TIME_MAX))?;
        let answers = BufReader::new(stream.try_clone()?);
        Ok(Self { program, stream, answers, outgoing: Vec::new(), answer: Vec::new() })
    }

    /// Sends requests, whose answers are then read in their order.
    ///
    /// # Errors
    /// The connection's.
    pub(super) fn send(&mut self, requests: impl Iterator<Item = Request>) -> Result<()> {
        self.outgoing.clear();
        for request in requests {
            match (self.program, request) {
                // redis-benchmark's own keys.
                (Program::Redis, Request::Store { key, turn }) => {
                    write!(
                        self.outgoing,
                        "*3\r\n$3\r\nSET\r\n$16\r\nkey:{key:012}\r\n${VALUE_LEN}\r\n"
                    )?;
                    self.outgoing.extend(value(key, turn));
                    self.outgoing.extend(b"\r\n");
                }
                (Program::Redis, Request::Load { key }) => {
                    write!(self.outgoing, "*2\r\n$3\r\nGET\r\n$16\r\nkey:{key:012}\r\n")?;
                }
                (Program::Memcached, Request::Store { key, turn }) => {
                    write!(self.outgoing, "set key:{key:012} 0 0 {VALUE_LEN}\r\n")?;
                    self.outgoing.extend(value(key, turn));
                    self.outgoing.extend(b"\r\n");
                }
                (Program::Memcached, Request::Load { key }) => {
                    write!(self.outgoing, "get key:{key:012}\r\n")?;
                }
            }
        }
        Ok(self.stream.write_all(&self.outgoing)?)
    }

    /// Reads the answer to a store.
    ///
    /// # Errors
    /// It was refused; the connection's.
    pub(super) fn stored(&mut self, key: u64) -> Result<()> {
        let expected = match self.program {
            Program::Redis => "+OK",
            Program::Memcached => "STORED",
        };
        let said = self.line()?;
        ensure!(said == expected, "key {key} cannot be stored: {said}");
        Ok(())
    }

    /// Reads the answer to a load: the value.
    ///
    /// # Errors
    /// There is none; the connection's.
    pub(super) fn loaded(&mut self, key: u64) -> Result<&[u8]> {
        let head = self.line()?;
        let (len, end) = match self.program {
            Program::Redis => (head.strip_prefix('$'), ""),
            Program::Memcached => {
                let value = head.strip_prefix("VALUE ");
                (value.and_then(|value| value.split(' ').nth(2)), "END\r\n")
            }
        };
        let Some(len) = len.and_then(|len| len.parse::<usize>().ok()) else {
            bail!("key {key} has no value: {head}");
        };
        self.body(len)?;
        let mut behind = vec![0; end.len()];
        self.answers.read_exact(&mut behind)?;
        ensure!(behind == end.as_bytes(), "the value of key {key} has no end");
        Ok(&self.answer)
    }

    /// Makes sure that redis-server saves as it does by default.
    ///
    /// # Errors
    /// It does not; the connection's.
    pub(super) fn ensure_saves_by_default(&mut self) -> Result<()> {
        self.stream.write_all(b"CONFIG GET save\r\n")?;
        ensure!(self.line()? == "*2", "redis-server does not say how it saves");
        let _name = self.text()?;
        let rules = self.text()?;
        ensure!(
            rules == "3600 1 300 100 60 10000",
            "redis-server does not save by default: {rules:?}"
        );
        Ok(())
    }

    /// Has redis-server save in a forked child, unless one does already.
    ///
    /// # Errors
    /// The connection's.
    pub(super) fn begin_saving(&mut self) -> Result<()> {
        self.stream.write_all(b"BGSAVE\r\n")?;
        let said = self.line()?;
        let is_saving = said.starts_with('+') || said.contains("already in progress");
        ensure!(is_saving, "redis-server does not save: {said}");
        Ok(())
    }

    /// The text in which redis-server tells of itself.
    ///
    /// # Errors
    /// The connection's.
    pub(super) fn info(&mut self) -> Result<String> {
        self.stream.write_all(b"INFO\r\n")?;
        self.text()
    }

    /// Tells redis-server to end without saving.
    ///
    /// # Errors
    /// The connection's.
    pub(super) fn shut_down(&mut self) -> Result<()> {
        Ok(self.stream.write_all(b"SHUTDOWN NOSAVE\r\n")?)
    }

    /// Reads a text of known length.
    fn text(&mut self) -> Result<String> {
        let head = self.line()?;
        let len = head.strip_prefix('$').and_then(|len| len.parse::<usize>().ok());
        self.body(len.with_context(|| format!("no text: {head}"))?)?;
        Ok(String::from_utf8_lossy(&self.answer).into_owned())
    }

    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        let most = u64::try_from(ANSWER_LEN_MAX)?;
        self.answers.by_ref().take(most).read_line(&mut line).context("no answer")?;
        line.strip_suffix("\r\n").map(str::to_owned).context("the connection has ended")
    }

    /// Reads so many bytes and the end of their line.
    fn body(&mut self, len: usize) -> Result<()> {
        ensure!(len <= ANSWER_LEN_MAX, "an answer of {len} bytes");
        self.answer.resize(len + 2, 0);
        self.answers.read_exact(&mut self.answer).context("no answer")?;
        self.answer.truncate(len);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answered(program: Program, answers: &'static [u8]) -> (Connection, UnixStream) {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        theirs.write_all(answers).unwrap();
        let answers = BufReader::new(ours.try_clone().unwrap());
        let connection =
            Connection { program, stream: ours, answers, outgoing: Vec::new(), answer: Vec::new() };
        (connection, theirs)
    }

    #[test]
    fn answers_are_read_in_both_protocols() {
        let (mut redis, _end) =
            answered(Program::Redis, b"+OK\r\n$3\r\na\r\n\r\n$-1\r\n-ERR no room\r\n");
        redis.stored(1).unwrap();
        assert_eq!(redis.loaded(2).unwrap(), b"a\r\n");
        assert!(redis.loaded(3).unwrap_err().to_string().contains("key 3 has no value"));
        assert!(redis.stored(4).unwrap_err().to_string().contains("no room"));
        let answers =
            b"STORED\r\nVALUE key 0 2\r\nab\r\nEND\r\nEND\r\nVALUE key 0 1\r\na\r\nNOT\r\n";
        let (mut memcached, end) = answered(Program::Memcached, answers);
        memcached.stored(1).unwrap();
        assert_eq!(memcached.loaded(2).unwrap(), b"ab");
        assert!(memcached.loaded(3).unwrap_err().to_string().contains("key 3 has no value: END"));
        assert!(memcached.loaded(4).is_err());
        drop(end);
        assert!(memcached.stored(5).unwrap_err().to_string().contains("ended"));
    }

    #[test]
    fn values_are_distinct() {
        assert_ne!(value(1, 0), value(1, 1));
        assert_ne!(value(1, 0), value(2, 0));
        assert_eq!(value(7, 3), value(7, 3));
    }
}
