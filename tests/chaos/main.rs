//! Clients that behave badly, all at once, against one server: whatever they do, every accepted
//! request ends once, tokens are those of an undisturbed run, and all that was taken is given back.
//!
//! `TRAIL_CHAOS_SECONDS` (30) is the length of the test, `TRAIL_CHAOS_SEED` (1) chooses what the
//! clients do. The order in which threads run is not seeded, so a seed repeats the behaviour of
//! each client but not their interleaving.

#[path = "../common/mod.rs"]
mod common;

mod clients;
mod process;
mod questions;

use std::time::{Duration, Instant};

use clients::{Client, Counts};
use common::Server;
use process::Resources;
use questions::Questions;

// The server inherits the library path, which begins with the emulator's folder.
trail_cuda_emulator::on_emulator!();

/// Clients at once.
const CLIENTS: u64 = 8;
/// Memory that the server may keep after the clients have left, bytes: arenas of the allocator, and
/// KV blocks that were touched.
const KEPT_BYTES: u64 = 200 << 20;
/// Wait for the server to be as it was.
const PATIENCE: Duration = Duration::from_secs(60);
/// `--drain-seconds` of the servers.
const DRAIN_SECONDS: u64 = 15;

fn setting(name: &str, default: u64) -> u64 {
    match std::env::var(name) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{name}={text} is not a number")),
        Err(_) => default,
    }
}

/// Starts a server with `options`, lets the clients loose for `seconds`, and checks what is left.
fn chaos(options: &[&str], seconds: u64) {
    let seed = setting("TRAIL_CHAOS_SEED", 1);
    let drain = DRAIN_SECONDS.to_string();
    let mut server = Server::start(&[options, &["--drain-seconds", &drain]].concat());
    let questions = Questions::ask(&server, seed);
    let before = Resources::of(&server);
    let end = Instant::now() + Duration::from_secs(seconds);
    let counts = std::thread::scope(|scope| {
        let client = |number| Client::new(&server, &questions, seed * CLIENTS + number);
        let clients: Vec<_> =
            (0..CLIENTS).map(|number| scope.spawn(move || client(number).run(end))).collect();
        let join = |client: std::thread::ScopedJoinHandle<'_, Counts>| {
            client.join().expect("the client found nothing wrong")
        };
        clients.into_iter().map(join).fold(Counts::default(), Counts::plus)
    });
    println!("seed {seed}, {seconds} s: {counts:?}");
    settle(&server, &before);
    check_metrics(&server, &counts);
    questions.check(&server);
    last_orders(&mut server, &questions);
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
        "POST /v1/completions HTTP/1.1\r\nContent-Length: 9\r\n\r\n{",
    ] {
        halves.push(clients::open(server, half.as_bytes()));
    }
    let streams: Vec<_> =
        (0..questions.count()).map(|index| (index, questions.begin(server, index))).collect();
    server.terminate();
    let begin = Instant::now();
    for (index, stream) in streams {
        questions.check_stream(index, stream);
    }
    drop(halves);
    let (status, said) = server.end();
    assert!(status.success(), "{status}: {said}");
    assert!(begin.elapsed() < Duration::from_secs(DRAIN_SECONDS + 5), "{:?}", begin.elapsed());
}

#[test]
fn on_the_cpu() {
    let seconds = setting("TRAIL_CHAOS_SECONDS", 30);
    // Four requests in a pool for two: preemption and recomputation all the time.
    let small = ["--kv-blocks", "60", "--max-running", "4", "--max-requests", "24"];
    chaos(&[&small[..], &["--device", "cpu"]].concat(), seconds * 2 / 3);
}

#[test]
fn on_the_emulator() {
    let seconds = setting("TRAIL_CHAOS_SECONDS", 30);
    let small = ["--kv-blocks", "60", "--max-running", "4", "--max-requests", "12"];
    let cuda = [
        "--device",
        "cuda",
        "--preemption",
        "swap",
        "--token-budget",
        "48",
        "--host-kv-gib",
        "0.1",
    ];
    chaos(&[&small[..], &cuda].concat(), seconds / 3);
}
