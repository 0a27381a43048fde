//! Any bytes as a request body: refused with an error object of one line, or read, and in time.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    for error in trail_server::check_body(bytes).into_iter().flatten() {
        let message = error["error"]["message"].as_str().expect("a message");
        assert_eq!(message.lines().count(), 1, "{message}");
    }
});
