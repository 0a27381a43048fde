//! Clients that take too long, or too many connections.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use crate::common::Server;

/// Connects and sends `bytes`; a read that waits a minute fails.
fn connect(server: &Server, bytes: &[u8]) -> TcpStream {
    let mut connection = TcpStream::connect(server.address).expect("the server listens");
    connection.set_read_timeout(Some(Duration::from_secs(60))).expect("a timeout can be set");
    connection.write_all(bytes).expect("sent");
    connection
}

/// Reads until the server closes the connection, which a reset does as well.
fn read_to_close(connection: &mut TcpStream) -> String {
    let mut bytes = Vec::new();
    if let Err(error) = connection.read_to_end(&mut bytes) {
        assert_eq!(error.kind(), ErrorKind::ConnectionReset, "the connection is still open");
    }
    String::from_utf8(bytes).expect("UTF-8")
}

#[test]
fn a_silent_connection_is_closed() {
    let server = Server::start(&["--idle-timeout", "1"]);
    assert_eq!(read_to_close(&mut connect(&server, b"")), "");
    let health = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n";
    let answer = read_to_close(&mut connect(&server, health));
    assert!(answer.starts_with("HTTP/1.1 200 ") && answer.ends_with("ok\n"), "{answer}");
}

#[test]
fn half_a_header_is_given_up() {
    let server = Server::start(&["--header-timeout", "1"]);
    assert_eq!(read_to_close(&mut connect(&server, b"GET /health HTTP/1.1\r\nHos")), "");
    // A second header, on a connection that had time to be idle.
    let mut connection = connect(&server, b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n");
    std::thread::sleep(Duration::from_millis(1500));
    connection.write_all(b"GET /hea").expect("still open");
    assert_eq!(read_to_close(&mut connection).matches("200 OK").count(), 1);
}

#[test]
fn half_a_body_is_given_up() {
    let server = Server::start(&["--body-timeout", "1"]);
    for length in ["Content-Length: 100\r\n\r\n{", "Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n"] {
        let half = format!("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n{length}");
        let answer = read_to_close(&mut connect(&server, half.as_bytes()));
        assert!(answer.starts_with("HTTP/1.1 408 ") && answer.contains("after 1 s"), "{answer}");
    }
}

#[test]
fn a_response_that_is_not_read_is_given_up() {
    let server = Server::start(&["--write-timeout", "1"]);
    let files = server.files();
    // 30 MB of responses: more than the buffers of both sockets.
    let requests = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n".repeat(5000);
    let connection = connect(&server, &requests);
    server.wait_for_files(files);
    drop(connection);
}

#[test]
fn connections_beyond_the_limit_are_refused() {
    for (limit, options) in [("-n 1024", &["--max-connections", "20"][..]), ("-n 40", &[])] {
        let server = Server::start_under(limit, options);
        let silent: Vec<TcpStream> = (0..20).map(|_| connect(&server, b"")).collect();
        let answer = read_to_close(&mut connect(&server, LIVE));
        // Without a descriptor left it closes without a word.
        let is_refused = answer.starts_with("HTTP/1.1 503 ") || options.is_empty();
        assert!(is_refused && !answer.contains("200 OK"), "{answer}");
        drop(silent);
        let start = Instant::now();
        while !read_to_close(&mut connect(&server, LIVE)).starts_with("HTTP/1.1 200 ") {
            assert!(start.elapsed() < Duration::from_secs(30), "there is no room again");
        }
    }
}

const LIVE: &[u8] = b"GET /live HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";

#[test]
fn the_limit_of_open_files_is_raised() {
    let server = Server::start_under("-Sn 64", &[]);
    let limits = server.proc("limits");
    let files = limits.lines().find(|line| line.starts_with("Max open files")).expect("a limit");
    let values: Vec<&str> = files.split_whitespace().skip(3).take(2).collect();
    assert_eq!(values[0], values[1], "{files}");
}
