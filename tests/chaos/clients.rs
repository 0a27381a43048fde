//! One client: what it does next is drawn from its seed.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use serde_json::json;
use trail_platform::rng::Rng;

use crate::common::{Server, http};
use crate::questions::{COMPLETIONS, Questions};

/// Wait of a client for the answer to garbage.
const GARBAGE_TIMEOUT: Duration = Duration::from_secs(2);

/// Requests of clients, by their end.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    /// Answers that came whole and were right.
    pub(crate) complete: u64,
    /// Requests that were refused for want of room.
    pub(crate) full: u64,
    /// Connections that were dropped before the end of an answer.
    pub(crate) left: u64,
    /// Half, damaged and wrong requests.
    pub(crate) bad: u64,
}

impl Counts {
    pub(crate) fn plus(self, other: Counts) -> Counts {
        Counts {
            complete: self.complete + other.complete,
            full: self.full + other.full,
            left: self.left + other.left,
            bad: self.bad + other.bad,
        }
    }

    /// Counts an answer that came whole, or a refusal.
    fn answered(&mut self, served: bool) {
        *(if served { &mut self.complete } else { &mut self.full }) += 1;
    }
}

/// Sends raw bytes.
pub(crate) fn open(server: &Server, bytes: &[u8]) -> TcpStream {
    let mut connection = TcpStream::connect(server.address).expect("the server listens");
    // The server may have closed it already, after the first bytes.
    let _ = connection.write_all(bytes);
    connection
}

/// A client of a server under test.
pub(crate) struct Client<'a> {
    server: &'a Server,
    questions: &'a Questions,
    /// Requests that a flood has open at once.
    flood: usize,
    rng: Rng,
    counts: Counts,
}

impl<'a> Client<'a> {
    pub(crate) fn new(
        server: &'a Server,
        questions: &'a Questions,
        flood: usize,
        seed: u64,
    ) -> Client<'a> {
        Client { server, questions, flood, rng: Rng::new(seed), counts: Counts::default() }
    }

    /// Does one thing after the other until `end`.
    pub(crate) fn run(mut self, end: Instant) -> Counts {
        while Instant::now() < end {
            match self.rng.below(16) {
                0..4 => self.whole(),
                4..7 => self.stream(),
                7..9 => self.stall(),
                9..12 => self.vanish(),
                12 => self.half(),
                13 => self.garbage(),
                14 => self.wrong(),
                _ => self.flood(),
            }
        }
        self.counts
    }

    fn index(&mut self) -> usize {
        self.rng.below(self.questions.count() as u64) as usize
    }

    fn pause(&mut self, max_ms: u64) {
        std::thread::sleep(Duration::from_millis(self.rng.below(max_ms)));
    }

    fn whole(&mut self) {
        let index = self.index();
        let body = self.questions.body(index, false).to_string();
        let (status, answer) = self.server.request("POST", COMPLETIONS, &body);
        assert!(matches!(status, 200 | 429), "{status}: {answer}");
        if status == 200 {
            self.questions.check_whole(index, &answer);
        }
        self.counts.answered(status == 200);
    }

    fn stream(&mut self) {
        let index = self.index();
        let stream = self.questions.begin(self.server, index);
        let served = self.questions.check_stream(index, stream);
        self.counts.answered(served);
    }

    /// Reads nothing for a while.
    fn stall(&mut self) {
        let index = self.index();
        let stream = self.questions.begin(self.server, index);
        self.pause(1500);
        let served = self.questions.check_stream(index, stream);
        self.counts.answered(served);
    }

    /// Leaves somewhere in the answer.
    fn vanish(&mut self) {
        let index = self.index();
        let stream = self.rng.below(2) == 0;
        let body = self.questions.body(index, stream);
        let mut connection = self.server.begin(COMPLETIONS, &body);
        if self.rng.below(2) == 0 {
            let mut some = vec![0; 1 + self.rng.below(400) as usize];
            // An answer may be shorter.
            let _ = connection.read(&mut some);
        } else {
            self.pause(100);
        }
        self.counts.left += 1;
    }

    /// Sends part of a request and leaves.
    fn half(&mut self) {
        let index = self.index();
        let body = self.questions.body(index, true).to_string();
        let head = format!(
            "POST {COMPLETIONS} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        let whole = [head.as_bytes(), body.as_bytes()].concat();
        let sent = self.rng.below(whole.len() as u64) as usize;
        let connection = open(self.server, &whole[..sent]);
        self.pause(500);
        drop(connection);
        self.counts.bad += 1;
    }

    /// Sends a request with damaged bytes: any answer but a server error will do.
    fn garbage(&mut self) {
        let index = self.index();
        let body = self.questions.body(index, false).to_string();
        let head = format!(
            "POST {COMPLETIONS} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        let mut whole = [head.as_bytes(), body.as_bytes()].concat();
        for _ in 0..1 + self.rng.below(6) {
            let at = self.rng.below(whole.len() as u64) as usize;
            whole[at] = self.rng.next_u64() as u8;
        }
        let mut connection = open(self.server, &whole);
        connection.set_read_timeout(Some(GARBAGE_TIMEOUT)).expect("a timeout can be set");
        let mut answer = Vec::new();
        // A damaged length makes the server wait for more: the client leaves.
        let _ = connection.read_to_end(&mut answer);
        assert!(!answer.starts_with(b"HTTP/1.1 5"), "{}", String::from_utf8_lossy(&answer));
        self.counts.bad += 1;
    }

    /// Sends requests that must be refused by name.
    fn wrong(&mut self) {
        for wrong in [
            json!({ "prompt": "a", "temperature": "hot" }),
            json!({ "prompt": { "text": "a" } }),
            json!({ "prompt": "a", "tools": [1] }),
        ] {
            let (status, answer) = self.server.request("POST", COMPLETIONS, &wrong.to_string());
            assert_eq!(status, 400, "{wrong}: {answer}");
        }
        let (status, _) = self.server.get("/metrics");
        assert_eq!(status, 200);
        self.counts.bad += 3;
    }

    /// Sends many small requests before it reads an answer.
    fn flood(&mut self) {
        let body = json!({ "prompt": "a", "max_tokens": 1 });
        let open = |_| self.server.begin(COMPLETIONS, &body);
        let connections: Vec<_> = (0..self.flood).map(open).collect();
        for connection in connections {
            let (status, answer) = http::receive(connection);
            assert!(matches!(status, 200 | 429), "{status}: {answer}");
            self.counts.answered(status == 200);
        }
    }
}
