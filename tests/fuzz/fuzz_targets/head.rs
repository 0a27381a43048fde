//! Any bytes as the head of a request: refused with an error object of one line, or taken; what a
//! server on a loopback address takes, every other one does.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let [loopback, public] = trail_server::check_head(bytes);
    assert!(loopback.is_some() || public.is_none(), "{public:?}");
    for error in [loopback, public].into_iter().flatten() {
        let message = error["error"]["message"].as_str().expect("a message");
        assert_eq!(message.lines().count(), 1, "{message}");
    }
});
