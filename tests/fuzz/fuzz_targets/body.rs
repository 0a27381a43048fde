//! Any bytes as a request body: refused with an error object of one line, or read, and in time.
#![no_main]
#![allow(dead_code, reason = "only the part of the server that reads bodies is called")]

#[path = "../../../src/detokenizer.rs"]
mod detokenizer;
#[path = "../../../src/random.rs"]
mod random;
#[path = "../../../src/server/mod.rs"]
mod server;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    for error in server::check_body(bytes).into_iter().flatten() {
        let message = error["error"]["message"].as_str().expect("a message");
        assert_eq!(message.lines().count(), 1, "{message}");
    }
});
