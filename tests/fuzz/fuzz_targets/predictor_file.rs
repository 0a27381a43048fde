//! Any bytes as a predictor file: refused in one line, or a predictor that answers finitely, and
//! alike after a round trip.
#![no_main]

use libfuzzer_sys::fuzz_target;
use trail_probe::{Predictor, Storage};

fuzz_target!(|bytes: &[u8]| {
    match Predictor::from_bytes(bytes, "fuzz") {
        Err(error) => assert_eq!(error.to_string().lines().count(), 1),
        Ok(predictor) => {
            let inputs = |predictor: &Predictor| match predictor.features().of(&[0, 1, 1]) {
                Some(inputs) => inputs,
                // An embedding, as far as the file says how wide it is.
                None => (0..predictor.features().width() as u32).map(|at| (at, 0.5)).collect(),
            };
            let predicted = predictor.of_features(&inputs(&predictor));
            assert!(predicted.mean().is_finite() && predicted.likeliest().is_finite());
            let again = Predictor::from_bytes(&predictor.to_bytes(Storage::F32), "again").unwrap();
            assert_eq!(again.of_features(&inputs(&again)), predicted);
            assert_eq!(again, predictor);
        }
    }
});
