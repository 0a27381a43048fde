//! Any bytes as a probe file: refused in one line, or weights that answer finitely and survive a
//! round trip.
#![no_main]

use libfuzzer_sys::fuzz_target;
use trail_probe::Partials;
use trail_probe::file::{Probe, probe_bytes, read_weights};

fuzz_target!(|bytes: &[u8]| {
    match read_weights(bytes, "fuzz") {
        Err(error) => assert_eq!(error.to_string().lines().count(), 1),
        Ok((weights, bins, layer)) => {
            let again = probe_bytes(&weights, bins, layer);
            assert_eq!(read_weights(&again, "again").unwrap(), (weights, bins, layer));
            let head = Probe::from_bytes(bytes, "fuzz").unwrap().head;
            let mut out = vec![0.0; head.bins()];
            head.forward(&vec![0.0; head.d()], 1, &Partials::new(&head, 1), &mut out);
        }
    }
});
