//! A minimal HTTP/1.0 client: a response ends with its connection.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::Value;

/// Maximum wait for the next byte, so that a hang fails the test.
const READ_TIMEOUT: Duration = Duration::from_secs(60);

/// Sends a request; the response can be read from the connection.
pub(crate) fn send(address: SocketAddr, method: &str, path: &str, body: &str) -> TcpStream {
    send_with(address, method, path, &[], body)
}

/// The same with further headers.
pub(crate) fn send_with(
    address: SocketAddr,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> TcpStream {
    let headers: String =
        headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    let mut connection = TcpStream::connect(address).expect("the server listens");
    connection.set_read_timeout(Some(READ_TIMEOUT)).expect("a timeout can be set");
    let length = body.len();
    let head = format!(
        "{method} {path} HTTP/1.0\r\nHost: {address}\r\nContent-Length: {length}\r\n{headers}\r\n"
    );
    connection.write_all(head.as_bytes()).expect("the head is sent");
    connection.write_all(body.as_bytes()).expect("the body is sent");
    connection
}

/// Reads a response to its end: status and body.
pub(crate) fn receive(connection: TcpStream) -> (u16, String) {
    receive_unless_reset(connection).expect("an answer")
}

/// As [`receive`]; `None` if the server ended before it accepted the connection.
pub(crate) fn receive_unless_reset(mut connection: TcpStream) -> Option<(u16, String)> {
    let mut answer = Vec::new();
    match connection.read_to_end(&mut answer) {
        Err(error) if error.kind() == ErrorKind::ConnectionReset && answer.is_empty() => {
            return None;
        }
        read => read.expect("a whole answer"),
    };
    let response = Response::parse(answer);
    Some((response.status, response.body))
}

/// A response.
pub(crate) struct Response {
    pub(crate) status: u16,
    head: String,
    pub(crate) body: String,
}

impl Response {
    fn parse(answer: Vec<u8>) -> Response {
        let answer = String::from_utf8(answer).expect("an answer in UTF-8");
        let (head, body) = answer.split_once("\r\n\r\n").expect("a head and a body");
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
        let (head, body) = (head.to_owned(), body.to_owned());
        Response { status: status.expect("a status"), head, body }
    }

    /// Reads a response to the end of its connection.
    pub(crate) fn read(connection: &mut impl Read) -> Response {
        let mut answer = Vec::new();
        connection.read_to_end(&mut answer).expect("a whole answer");
        Response::parse(answer)
    }

    /// The value of a header, by its name in lower case.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let headers = self.head.lines().skip(1).filter_map(|line| line.split_once(": "));
        headers
            .into_iter()
            .find(|(other, _)| other.eq_ignore_ascii_case(name))
            .map(|(_, value)| value)
    }

    /// The body as JSON.
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|_| panic!("no JSON: {}", self.body))
    }
}
