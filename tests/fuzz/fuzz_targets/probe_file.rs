//! Any bytes as a probe file: refused in one line, or weights that answer finitely and survive a
//! round trip.
#![no_main]

use libfuzzer_sys::fuzz_target;
use trail_probe::{Beside, Partials, Probe, Rows, Storage};

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
            let (zeros, mut out) = (vec![0.0; head.d()], vec![0.0; head.bins()]);
            let (partials, mut prompt) = (Partials::new(&head, 1), head.prompt_sums());
            head.read_prompt(&zeros, 7, &partials, &mut prompt);
            let beside = |_| Beside { generated: 5, prompt: Some(&prompt) };
            head.forward(Rows { activations: &zeros, beside: &beside }, 1, &partials, &mut out);
        }
    }
});
