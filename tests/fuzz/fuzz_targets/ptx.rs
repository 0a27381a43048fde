//! Any text as a PTX module: refused with the line at fault, or decoded.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    if let Err(error) = trail_cuda_emulator::check_ptx(text) {
        assert!(error.starts_with("PTX line "), "{error}");
        assert_eq!(error.lines().count(), 1, "{error}");
    }
});
