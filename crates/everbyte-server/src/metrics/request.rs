//! HTTP requests to the metrics server, as bytes of a peer.

/// Bytes of the head of a request at most.
pub(super) const HEAD_BYTES_MAX: usize = 8 << 10;

/// Path of the only page.
const PATH: &str = "/metrics";

/// The answer to the received bytes of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Reply {
    /// The head of the request is incomplete.
    Incomplete,
    /// The page; only its head if `is_head` is set.
    Page {
        /// The method is HEAD.
        is_head: bool,
    },
    /// A status and its text.
    Refused(u16, &'static str),
}

/// Returns the answer to the bytes received so far.
#[must_use]
pub fn reply_to(received: &[u8]) -> Reply {
    let Some(end) = head_end(received) else {
        return match received.len() >= HEAD_BYTES_MAX {
            true => Reply::Refused(431, "Request Header Fields Too Large"),
            false => Reply::Incomplete,
        };
    };
    let line = received[..end].split(|byte| *byte == b'\n').next().unwrap_or_default();
    let bad = Reply::Refused(400, "Bad Request");
    let Ok(line) = std::str::from_utf8(line) else { return bad };
    let mut words = line.trim_end_matches('\r').split(' ');
    let (Some(method), Some(target), Some(version), None) =
        (words.next(), words.next(), words.next(), words.next())
    else {
        return bad;
    };
    if !["HTTP/1.0", "HTTP/1.1"].contains(&version) {
        return Reply::Refused(505, "HTTP Version Not Supported");
    }
    let is_head = method == "HEAD";
    if !is_head && method != "GET" {
        return Reply::Refused(405, "Method Not Allowed");
    }
    match target.split('?').next() == Some(PATH) {
        true => Reply::Page { is_head },
        false => Reply::Refused(404, "Not Found"),
    }
}

/// The end of the head of a request: an empty line.
fn head_end(received: &[u8]) -> Option<usize> {
    // Some clients end lines without a carriage return.
    let ends = [&b"\r\n\r\n"[..], b"\n\n"].into_iter();
    ends.filter_map(|end| received.windows(end.len()).position(|bytes| bytes == end)).min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_page_is_served() {
        for (request, reply) in [
            ("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n", Reply::Page { is_head: false }),
            ("GET /metrics?a=b HTTP/1.0\n\n", Reply::Page { is_head: false }),
            ("HEAD /metrics HTTP/1.1\r\n\r\n", Reply::Page { is_head: true }),
            ("GET /metrics HTTP/1.1\r\nHost: x\r\n", Reply::Incomplete),
            ("", Reply::Incomplete),
            ("GET / HTTP/1.1\r\n\r\n", Reply::Refused(404, "Not Found")),
            ("GET /metrics/x HTTP/1.1\r\n\r\n", Reply::Refused(404, "Not Found")),
            ("POST /metrics HTTP/1.1\r\n\r\n", Reply::Refused(405, "Method Not Allowed")),
            ("GET /metrics HTTP/2\r\n\r\n", Reply::Refused(505, "HTTP Version Not Supported")),
            ("GET /metrics\r\n\r\n", Reply::Refused(400, "Bad Request")),
            ("GET  /metrics HTTP/1.1\r\n\r\n", Reply::Refused(400, "Bad Request")),
            ("\r\n\r\n", Reply::Refused(400, "Bad Request")),
        ] {
            assert_eq!(reply_to(request.as_bytes()), reply, "{request:?}");
        }
        assert_eq!(reply_to(b"\xff\xff / HTTP/1.1\r\n\r\n"), Reply::Refused(400, "Bad Request"));
    }

    #[test]
    fn long_head_is_refused() {
        let long = vec![b'x'; HEAD_BYTES_MAX];
        assert_eq!(reply_to(&long[1..]), Reply::Incomplete);
        assert!(matches!(reply_to(&long), Reply::Refused(431, _)));
    }
}
