//! Any bytes as a shard of activations: refused in one line, or a shard whose rows can all be read.
#![no_main]

use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use trail_training::{Dataset, Shard};

fuzz_target!(|bytes: &[u8]| {
    match Shard::parse(Arc::new(bytes.to_vec()), "fuzz") {
        Err(error) => assert_eq!(error.to_string().lines().count(), 1),
        Ok(shard) => {
            let mut row = vec![0.0; shard.hidden()];
            for layer in shard.layers() {
                (0..shard.rows().len()).for_each(|i| shard.activation(layer, i, &mut row));
                (0..shard.answers().len()).for_each(|i| shard.mean(layer, i, &mut row));
                shard.non_finite(layer);
            }
            let layers: Vec<usize> = shard.layers().collect();
            let _ = Dataset::new(std::slice::from_ref(&shard), &layers, 1);
        }
    }
});
