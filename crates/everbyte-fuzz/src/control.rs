//! The control socket: its server against hostile clients, its client against hostile servers.
//!
//! Oracle: a request reaches the handler only if its line contains exactly that request. Each line
//! has one well-formed answer, until the first line that is not a request. The client returns the
//! sent answer or an error.

use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Mutex;

use everbyte_control::{
    ControlClient, ControlError, DeletedStatus, FileId, FileRequest, Handler, NewVolume,
    PIECE_BYTES_MAX, PROTOCOL_VERSION, Request, RequestError, Response, ServingStatus,
    serve_stream,
};
use serde_json::{Value, json};

use crate::socket::{SAID_MAX, drain, peer_saying};

/// Most bytes sent by a client: the answers to so many lines fit in a socket's buffer.
const CLIENT_SAID_MAX: usize = 4096;

/// Byte for a sound request in an input; the next byte selects it.
const SOUND_REQUEST: u8 = 0xFF;

/// Lets a client say `bytes` to a server if the first one is even, and a server to a client if
/// not. Bytes 0xFF and one more stand for a sound message.
///
/// # Panics
/// If a promise is broken.
pub fn control(bytes: &[u8]) {
    match bytes.split_first() {
        Some((which, said)) if which % 2 == 0 => serve(&said_by(said, sound_request)),
        Some((_, said)) => ask(&said_by(said, sound_answer)),
        None => {}
    }
}

/// Returns the bytes to say: those of the input, with whole messages in place of some.
fn said_by(input: &[u8], message: impl Fn(u8) -> Vec<u8>) -> Vec<u8> {
    let mut said = Vec::new();
    let mut bytes = input.iter();
    while let Some(&byte) = bytes.next() {
        match byte {
            SOUND_REQUEST => said.extend(message(bytes.next().copied().unwrap_or(0))),
            other => said.push(other),
        }
    }
    said
}

/// The number of a request with bytes, and the bytes.
const WITH_BYTES: u8 = 119;
/// The number of a request for a lease, here without a descriptor.
const LEND: u8 = 118;
const ATTACHED: &[u8] = b"a\nb";

fn requests(number: u8) -> Request {
    let name = "v".to_owned();
    match number % 12 {
        0 => Request::Info,
        1 => Request::Check,
        2 => Request::Grow { size_bytes: u64::MAX },
        3 => Request::VolumeCreate(NewVolume {
            name,
            kind: "block".to_owned(),
            size_bytes: 512,
            delta: "auto".to_owned(),
            checksum: "none".to_owned(),
            threshold_percent: 50,
            log_bytes: None,
            lanes: 1,
            checkpoint_lines: Some(1),
            cache: None,
            fs: None,
            wipe: false,
        }),
        4 => Request::VolumeList,
        5 => Request::VolumeResize { name, size_bytes: 0, force: false },
        6 => Request::VolumeDelete { name, force: true },
        7 => Request::Stats,
        8 => Request::Exports,
        9 => Request::ClientList,
        10 if number == LEND => Request::Lend { volume: name, bytes: u64::MAX },
        10 => Request::ClientDisconnect { id: u64::MAX },
        11 if number == WITH_BYTES => {
            let file = FileId { inode: 1, generation: 1 };
            let len = ATTACHED.len() as u32;
            Request::Files { volume: name, request: FileRequest::Write { file, offset: 0, len } }
        }
        _ => Request::VolumeDetach { name, force: number > 64 },
    }
}

fn line_of(request: &Request) -> Value {
    json!({ "version": PROTOCOL_VERSION, "request": request })
}

fn sound_request(number: u8) -> Vec<u8> {
    let mut line = serde_json::to_vec(&line_of(&requests(number))).unwrap();
    // Numbers from 128 on leave the line open for more.
    if number < 128 {
        line.push(b'\n');
    }
    // Bytes with a newline: the server must not take them for lines.
    if number == WITH_BYTES {
        line.extend_from_slice(ATTACHED);
    }
    line
}

fn responses(number: u8) -> Response {
    match number % 4 {
        0 => Response::Grown { size_bytes: 7 },
        1 => Response::Deleted(DeletedStatus { name: "v".to_owned(), ..DeletedStatus::default() }),
        2 => Response::Volumes(Vec::new()),
        _ => Response::Serving(ServingStatus::default()),
    }
}

fn sound_answer(number: u8) -> Vec<u8> {
    let answer = match number % 8 {
        7 => json!({ "version": PROTOCOL_VERSION, "error": "no" }),
        _ if number == LEND => {
            let response = Response::Lent { ranges: vec![(0, 1 << 21), (1 << 22, u64::MAX)] };
            json!({ "version": PROTOCOL_VERSION, "response": response })
        }
        _ => json!({ "version": PROTOCOL_VERSION, "response": responses(number) }),
    };
    let mut line = serde_json::to_vec(&answer).unwrap();
    if number < 128 {
        line.push(b'\n');
    }
    line
}

/// Answers everything, and records the requests.
#[derive(Default)]
struct Recorder(Mutex<Vec<Request>>);

impl Handler for Recorder {
    fn handle(&self, request: Request) -> Result<Response, RequestError> {
        let mut asked = self.0.lock().unwrap();
        // Recorded before the answer, so a refused request counts as understood.
        asked.push(request);
        match asked.len() % 3 {
            0 => Err(RequestError::new("not now")),
            number => Ok(responses(number as u8)),
        }
    }
}

fn serve(said: &[u8]) {
    let said = &said[..said.len().min(CLIENT_SAID_MAX)];
    let (near, far) = peer_saying(said);
    let handler = Recorder::default();
    serve_stream(&handler, &near).expect("the peer hears everything");
    // The end of the stream shows that no answer is still to come.
    drop(near);
    let mut heard = Vec::new();
    drain(&far, &mut heard);
    let asked = handler.0.into_inner().unwrap();
    let lines = whole_lines(said);
    let whole = lines.len();
    let answers: Vec<Value> = heard
        .split_inclusive(|&byte| byte == b'\n')
        .map(|line| serde_json::from_slice(line).expect("an answer is JSON"))
        .collect();
    for (nth, request) in asked.iter().enumerate() {
        let line: Value = serde_json::from_slice(lines[nth]).expect("a request is JSON");
        let understood = line_of(request);
        assert!(says(&line, &understood), "{line} was understood as {understood}");
    }
    // All lines up to and including the first without a request are answered.
    assert!(answers.len() == asked.len() || answers.len() == asked.len() + 1);
    // A server may stop early only behind an answer to a line that is not a request.
    assert!(answers.len() == whole || answers.len() == asked.len() + 1);
    for (nth, answer) in answers.iter().enumerate() {
        assert_eq!(answer["version"], PROTOCOL_VERSION);
        // The recorder refuses every third request, and the server itself the last bad line.
        let refused = nth >= asked.len() || (nth + 1) % 3 == 0;
        assert!(
            answer["error"].is_string() == refused && answer["response"].is_object() != refused
        );
    }
}

/// The lines of messages that are complete with all announced bytes.
fn whole_lines(mut said: &[u8]) -> Vec<&[u8]> {
    let mut lines = Vec::new();
    while let Some(end) = said.iter().position(|&byte| byte == b'\n') {
        let (line, rest) = said.split_at(end + 1);
        let request = serde_json::from_slice::<Value>(line).ok();
        let request = request.and_then(|line| serde_json::from_value(line["request"].clone()).ok());
        let attached = request.map_or(0, |request: Request| request.attached_bytes() as usize);
        // More than there may be is refused without being waited for.
        let attached = if attached > PIECE_BYTES_MAX as usize { 0 } else { attached };
        // The announced bytes never come completely, so the line gets no answer.
        let Some(rest) = rest.get(attached..) else { break };
        lines.push(line);
        said = rest;
    }
    lines
}

/// Returns true if a member with this value may be left out.
fn is_left_out(value: &Value) -> bool {
    value.is_null()
        || [json!([]), json!({}), json!(0), json!(false), json!("none"), json!("")].contains(value)
}

/// Returns true if `line` has every member of `understood`, except optional ones.
pub(crate) fn says(line: &Value, understood: &Value) -> bool {
    match (line, understood) {
        (Value::Object(line), Value::Object(understood)) => {
            understood.iter().all(|(key, value)| match line.get(key) {
                // Members that are only in `line` do not matter: newer peers may send more.
                Some(said) => says(said, value),
                None => is_left_out(value),
            })
        }
        (Value::Array(line), Value::Array(understood)) => {
            line.len() == understood.len()
                && line.iter().zip(understood).all(|(line, understood)| says(line, understood))
        }
        (line, understood) => line == understood,
    }
}

fn ask(said: &[u8]) {
    let said = &said[..said.len().min(SAID_MAX)];
    let (near, _far): (UnixStream, UnixStream) = peer_saying(said);
    let mut client = ControlClient::over(near, PathBuf::from("pool.sock"));
    // Few calls: each takes a line, and further lines find the same code.
    for line in said.split_inclusive(|&byte| byte == b'\n').take(4) {
        let answer = client.call(Request::Info);
        let value: Option<Value> = serde_json::from_slice(line).ok();
        match answer {
            Ok(response) => {
                let response = serde_json::to_value(&response).unwrap();
                let value = value.expect("a response came from no JSON");
                assert!(says(&value["response"], &response), "{value} became {response}");
            }
            Err(ControlError::Refused(refused)) => {
                assert_eq!(value.expect("words came from no JSON")["error"], refused.reason);
            }
            Err(error) => {
                // The text is formatted because it contains bytes of the server.
                drop(error.to_string());
                break;
            }
        }
    }
    // A client whose connection has failed must answer a further call without blocking.
    drop(client.call(Request::Exports));
}
