//! Any bytes as the body of a request to the proxy, and as a stream that passes through it: its
//! tokens are the same however it is cut.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (u16, &[u8])| {
    let [whole, cut] = trail_server::proxy::check(input.1, input.0.into());
    assert_eq!(whole, cut);
});
