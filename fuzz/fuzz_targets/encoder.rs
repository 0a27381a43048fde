//! Any bytes as an encoder's configuration and, after a zero byte, its weights: refused in one
//! line, or parsed.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
    let weights = bytes.get(end + 1..).unwrap_or_default();
    if let Err(why) = trail_encoder::check(&bytes[..end], weights) {
        assert_eq!(why.lines().count(), 1);
    }
});
