//! Any bytes as a predictor file: refused in one line, or a predictor that answers finitely.
#![no_main]

use libfuzzer_sys::fuzz_target;
use trail_probe::Predictor;

fuzz_target!(|bytes: &[u8]| {
    match Predictor::from_bytes(bytes, "fuzz") {
        Err(error) => assert_eq!(error.to_string().lines().count(), 1),
        Ok(predictor) => assert!(predictor.predict(&[0, 1, 1]).is_finite()),
    }
});
