//! A toy server of OpenAI's API, behind a proxy under test.

use std::io::{BufRead, BufReader, ErrorKind, Read, Result, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

/// Longest wait of a test.
const PATIENCE: Duration = Duration::from_secs(30);

/// A request as the server received it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seen {
    pub(crate) line: String,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: String,
}

impl Seen {
    /// The value of a header, by its name in lower case.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(other, _)| other == name).map(|(_, value)| value.as_str())
    }
}

/// Writes the answer to a request.
type Answer = dyn Fn(&Seen, &mut TcpStream, &Flags) -> Result<()> + Send + Sync;

/// Shared with the threads of the connections.
#[derive(Default)]
pub(crate) struct Flags {
    /// Answers that wait go on.
    pub(crate) released: AtomicBool,
    /// No connection is taken any more.
    closed: AtomicBool,
    stopped: AtomicBool,
    seen: Mutex<Vec<Seen>>,
    /// Requests whose client left.
    left: Mutex<Vec<Seen>>,
    open: Mutex<Vec<TcpStream>>,
}

impl Flags {
    /// Number of requests so far whose first line has `part`.
    pub(crate) fn seen_of(&self, part: &str) -> usize {
        self.seen.lock().expect("no panic").iter().filter(|seen| seen.line.contains(part)).count()
    }

    /// Waits until the test releases the answers; an error if the server ends before.
    pub(crate) fn wait(&self) -> Result<()> {
        let start = Instant::now();
        while !self.released.load(SeqCst) {
            if self.stopped.load(SeqCst) {
                return Err(ErrorKind::BrokenPipe.into());
            }
            assert!(start.elapsed() < PATIENCE, "the answer is not released");
            thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }
}

/// The server; ends when dropped, and with it every connection.
pub(crate) struct Upstream {
    pub(crate) address: SocketAddr,
    pub(crate) flags: Arc<Flags>,
    accepting: Option<thread::JoinHandle<()>>,
}

impl Upstream {
    /// A server that answers by `answer`.
    pub(crate) fn start(
        answer: impl Fn(&Seen, &mut TcpStream, &Flags) -> Result<()> + Send + Sync + 'static,
    ) -> Upstream {
        Upstream::start_at(SocketAddr::from(([127, 0, 0, 1], 0)), answer)
    }

    /// The same at an address where another one was.
    pub(crate) fn start_at(
        address: SocketAddr,
        answer: impl Fn(&Seen, &mut TcpStream, &Flags) -> Result<()> + Send + Sync + 'static,
    ) -> Upstream {
        let listener = TcpListener::bind(address).expect("a port");
        let address = listener.local_addr().expect("an address");
        let flags = Arc::new(Flags::default());
        let (shared, answer): (_, Arc<Answer>) = (flags.clone(), Arc::new(answer));
        let accepting = thread::spawn(move || {
            for stream in listener.incoming() {
                if shared.closed.load(SeqCst) {
                    return;
                }
                let stream = stream.expect("a connection");
                stream.set_nodelay(true).expect("no delay");
                let kept = stream.try_clone().expect("a handle");
                shared.open.lock().expect("no panic").push(kept);
                let (flags, answer) = (shared.clone(), answer.clone());
                thread::spawn(move || serve(stream, &flags, &*answer));
            }
        });
        Upstream { address, flags, accepting: Some(accepting) }
    }

    /// Its URL.
    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The requests so far.
    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.flags.seen.lock().expect("no panic").clone()
    }

    /// The requests whose client left before the end of the answer.
    pub(crate) fn left(&self) -> Vec<Seen> {
        self.flags.left.lock().expect("no panic").clone()
    }

    /// Waits for a number of requests.
    pub(crate) fn wait_for(&self, requests: usize) {
        let start = Instant::now();
        while self.seen().len() < requests {
            assert!(start.elapsed() < PATIENCE, "{} of {requests} requests", self.seen().len());
            thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Drop for Upstream {
    fn drop(&mut self) {
        // In the order in which the system closes what a process had that was killed.
        self.flags.closed.store(true, SeqCst);
        let _ = TcpStream::connect(self.address);
        if let Some(accepting) = self.accepting.take() {
            accepting.join().expect("it ends");
        }
        self.flags.stopped.store(true, SeqCst);
        let open = std::mem::take(&mut *self.flags.open.lock().expect("no panic"));
        open.iter().for_each(|stream| {
            let _ = stream.shutdown(Shutdown::Both);
        });
    }
}

/// Answers the requests of a connection until it is closed.
fn serve(mut stream: TcpStream, flags: &Flags, answer: &Answer) {
    let mut reader = BufReader::new(stream.try_clone().expect("a handle"));
    while let Some(seen) = receive(&mut reader) {
        flags.seen.lock().expect("no panic").push(seen.clone());
        let line = seen.line.clone();
        if answer(&seen, &mut stream, flags).is_err() {
            let _ = stream.shutdown(Shutdown::Both);
            if !flags.stopped.load(SeqCst) {
                flags.left.lock().expect("no panic").push(seen);
            }
            return;
        }
        if ends_connection(&line) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

/// True for a request of HTTP/1.0, whose answer ends with its connection.
fn ends_connection(line: &str) -> bool {
    line.ends_with("HTTP/1.0")
}

fn receive(reader: &mut impl BufRead) -> Option<Seen> {
    let mut lines = Vec::new();
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).ok()? == 0 {
            return None;
        }
        match line.trim_end() {
            "" => break,
            line => lines.push(line.to_owned()),
        }
    }
    let headers = lines[1..].iter().filter_map(|line| line.split_once(": "));
    let headers = headers.map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()));
    let mut seen = Seen { line: lines[0].clone(), headers: headers.collect(), body: String::new() };
    let length =
        seen.header("content-length").map_or(0, |length| length.parse().expect("a length"));
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    seen.body = String::from_utf8(body).expect("a body in UTF-8");
    Some(seen)
}

/// Writes a whole object.
pub(crate) fn object(stream: &mut TcpStream, status: &str, body: &str) -> Result<()> {
    let length = body.len();
    write!(
        stream,
        "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n\
         {body}"
    )
}

/// Writes the head of a stream of events.
pub(crate) fn begin_events(stream: &mut TcpStream) -> Result<()> {
    write!(
        stream,
        "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
}

/// Writes a chunk of a stream, an empty one at its end.
pub(crate) fn chunk(stream: &mut TcpStream, bytes: &str) -> Result<()> {
    write!(stream, "{:x}\r\n{bytes}\r\n", bytes.len())
}
