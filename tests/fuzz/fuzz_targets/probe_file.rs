//! Any bytes as a probe file: refused in one line, or weights that answer finitely and survive a
//! round trip.
#![no_main]

use libfuzzer_sys::fuzz_target;
use trail_probe::{Partials, Probe, Storage};

fuzz_target!(|bytes: &[u8]| {
    match Probe::from_bytes(bytes, "fuzz") {
        Err(error) => assert_eq!(error.to_string().lines().count(), 1),
        Ok(probe) => {
            let again = Probe::from_bytes(&probe.to_bytes(Storage::F32), "again").unwrap();
            assert_eq!(
                (again.layers, again.bins, &again.weights),
                (probe.layers, probe.bins, &probe.weights)
            );
            assert_eq!((&again.model, &again.record), (&probe.model, &probe.record));
            let head = probe.head;
            let mut out = vec![0.0; head.bins()];
            head.forward(&vec![0.0; head.d()], 1, &Partials::new(&head, 1), &mut out);
        }
    }
});
