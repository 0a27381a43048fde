//! Clients that behave badly, all at once, against one server: whatever they do, every accepted
//! request ends once, tokens are those of an undisturbed run, and all that was taken is given back.
//!
//! `TRAIL_CHAOS_SECONDS` (15) is the length of the test, `TRAIL_CHAOS_SEED` (1) chooses what the
//! clients do. The order in which threads run is not seeded, so a seed repeats the behaviour of
//! each client but not their interleaving.

#[path = "../common/mod.rs"]
mod common;

mod clients;
mod process;
mod questions;

use std::time::{Duration, Instant};

use clients::{Client, Counts};
use common::{Server, http};
use process::Resources;
use questions::Questions;

// The server inherits the library path, which begins with the emulator's folder.
trail_cuda_emulator::on_emulator!();

/// Memory that the server may keep after the clients have left, bytes: arenas of the allocator, and
/// KV blocks that were touched.
const KEPT_BYTES: u64 = 200 << 20;
/// Wait for the server to be as it was.
const PATIENCE: Duration = Duration::from_secs(60);
/// `--drain-seconds` of the servers: enough for every stream where the machine is busy elsewhere.
const DRAIN_SECONDS: u64 = 50;

/// Load that a device can bear.
struct Scale {
    /// Clients at once.
    clients: u64,
    /// Longest answer, tokens.
    max_tokens: u64,
    /// Requests that a flood has open at once.
    flood: usize,
}

fn setting(name: &str, default: u64) -> u64 {
    match std::env::var(name) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{name}={text} is not a number")),
        Err(_) => default,
    }
}

/// Periods after which the clients give up to wait for the evidence: a slow machine needs more.
const MAX_PERIODS: u64 = 6;

/// Starts a server with `options`, lets the clients loose for periods of `seconds` until the metric
/// `evidence` has counted something, and checks what is left.
fn chaos(options: &[&str], seconds: u64, scale: &Scale, evidence: &str) {
    let seed = setting("TRAIL_CHAOS_SEED", 1);
    let drain = DRAIN_SECONDS.to_string();
    let mut server = Server::start(&[options, &["--drain-seconds", &drain]].concat());
    let questions = Questions::ask(&server, seed, scale.max_tokens);
    let before = Resources::of(&server);
    let mut counts = Counts::default();
    for period in 0..MAX_PERIODS {
        counts = counts.plus(run_clients(&server, &questions, scale, seed + period, seconds));
        if server.metric(evidence) > 0.0 {
            break;
        }
    }
    println!("seed {seed}, periods of {seconds} s: {counts:?}");
    settle(&server, &before);
    check_metrics(&server, &counts);
    assert!(server.metric(evidence) > 0.0, "no {evidence}: the pool is too large for this test");
    questions.check(&server);
    last_orders(&mut server, &questions);
}

/// Lets the clients loose for one period, and returns their counts.
fn run_clients(
    server: &Server,
    questions: &Questions,
    scale: &Scale,
    seed: u64,
    seconds: u64,
) -> Counts {
    let end = Instant::now() + Duration::from_secs(seconds);
    std::thread::scope(|scope| {
        let client =
            |number| Client::new(server, questions, scale.flood, seed * scale.clients + number);
        let clients: Vec<_> =
            (0..scale.clients).map(|number| scope.spawn(move || client(number).run(end))).collect();
        let join = |client: std::thread::ScopedJoinHandle<'_, Counts>| {
            client.join().expect("the client found nothing wrong")
        };
        clients.into_iter().map(join).fold(Counts::default(), Counts::plus)
    })
}

/// Waits until no request, block, thread or file is left.
fn settle(server: &Server, before: &Resources) {
    for gauge in ["trail_requests_running", "trail_requests_waiting", "trail_kv_blocks_used"] {
        server.wait_for(gauge, 0.0);
    }
    let begin = Instant::now();
    loop {
        let now = Resources::of(server);
        let grown = now.resident_bytes.saturating_sub(before.resident_bytes);
        if now.files <= before.files && now.threads <= before.threads && grown <= KEPT_BYTES {
            println!("from {before:?} to {now:?}");
            return;
        }
        assert!(begin.elapsed() < PATIENCE, "from {before:?} to {now:?}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Every request that was admitted has ended, once, and none failed.
fn check_metrics(server: &Server, counts: &Counts) {
    let ended = |reason: &str| {
        server.metric(&format!("trail_requests_total{{finish_reason=\"{reason}\"}}"))
    };
    let complete = ended("stop") + ended("length");
    assert!(complete >= counts.complete as f64, "{complete} of {counts:?}");
    assert_eq!(ended("failed") + ended("shutdown") + ended("error"), 0.0);
}

/// SIGTERM with streams, half requests and an unread answer: streams end whole, and the process
/// ends in time.
fn last_orders(server: &mut Server, questions: &Questions) {
    let mut halves = Vec::new();
    for half in [
        "GET /health HTTP/1.1\r\nHos",
        "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n{",
    ] {
        halves.push(clients::open(server, half.as_bytes()));
    }
    let streams: Vec<_> =
        (0..questions.count()).map(|index| (index, questions.begin(server, index))).collect();
    server.terminate();
    let begin = Instant::now();
    for (index, stream) in streams {
        // On a slow machine the server can end before it accepts the last connections.
        if let Some(answer) = http::receive_unless_reset(stream) {
            questions.check_answer(index, answer);
        }
    }
    drop(halves);
    let (status, output) = server.end();
    assert!(status.success(), "{status}: {output}");
    assert!(begin.elapsed() < Duration::from_secs(DRAIN_SECONDS + 5), "{:?}", begin.elapsed());
}

#[test]
fn on_the_cpu() {
    let seconds = setting("TRAIL_CHAOS_SECONDS", 15) * 2 / 3;
    let scale = Scale { clients: 8, max_tokens: 128, flood: 40 };
    // Four running requests, blocks for about two.
    let options = ["--device", "cpu", "--kv-blocks", "16"];
    let few = ["--max-running", "4", "--max-requests", "24"];
    chaos(&[options, few].concat(), seconds, &scale, "trail_evictions_total");
}

#[test]
fn on_the_emulator() {
    let seconds = setting("TRAIL_CHAOS_SECONDS", 15) / 3;
    let scale = Scale { clients: 3, max_tokens: 14, flood: 6 };
    let options = ["--device", "cuda", "--kv-blocks", "5", "--preemption", "swap"];
    let few = ["--max-running", "4", "--max-requests", "8", "--token-budget", "48"];
    let host = ["--host-kv-gib", "1"];
    chaos(&[&options[..], &few, &host].concat(), seconds, &scale, "trail_swaps_out_total");
}
