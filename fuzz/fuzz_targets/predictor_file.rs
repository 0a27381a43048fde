//! Any bytes as a predictor file: refused in one line, or a predictor that answers finitely, and
//! alike after a round trip.
#![no_main]

use libfuzzer_sys::fuzz_target;
use trail_probe::{Predictor, Storage};

fuzz_target!(|bytes: &[u8]| {
    match Predictor::from_bytes(bytes, "fuzz") {
        Err(error) => assert_eq!(error.to_string().lines().count(), 1),
        Ok(predictor) => {
            let predicted = predictor.predict(&[0, 1, 1]);
            assert!(predicted.is_finite());
            let again = Predictor::from_bytes(&predictor.to_bytes(Storage::F32), "again").unwrap();
            assert_eq!((again.bins(), again.predict(&[0, 1, 1])), (predictor.bins(), predicted));
            assert_eq!((&again.model, &again.record), (&predictor.model, &predictor.record));
        }
    }
});
