//! Damaged files: rejected or loaded, but never a panic.

use std::path::Path;

use trail_runtime::model::ModelConfig;
use trail_test_support::small::{golden, load, message, small_model};

/// Loads damaged bytes, and checks that an error has one line.
fn survive(config: &[u8], weights: &[u8]) {
    if let Err(error) = load(config, weights) {
        message(&error);
    }
}

#[test]
fn truncated_files_are_refused() {
    let (config, weights) = small_model();
    for len in 0..config.len() - 2 {
        assert!(load(&config[..len], &weights).is_err(), "config of {len} bytes");
    }
    let lengths = (0..3000).chain((3000..weights.len()).step_by(997));
    for len in lengths.chain([weights.len() - 1]) {
        assert!(load(&config, &weights[..len]).is_err(), "weights of {len} bytes");
    }
}

#[test]
fn flipped_bits_do_not_panic() {
    let (mut config, mut weights) = small_model();
    for bit in 0..config.len() * 8 {
        config[bit / 8] ^= 1 << (bit % 8);
        survive(&config, &weights);
        config[bit / 8] ^= 1 << (bit % 8);
    }
    let header_len = 8 + u64::from_le_bytes(weights[..8].try_into().unwrap()) as usize;
    for bit in 0..header_len * 8 {
        weights[bit / 8] ^= 1 << (bit % 8);
        survive(&config, &weights);
        weights[bit / 8] ^= 1 << (bit % 8);
    }
}

/// The configurations of the families, in both forms.
#[test]
fn flipped_bits_of_configs_do_not_panic() {
    for name in ["qwen2-f32", "qwen3-f32", "smollm3-f32", "gemma3-f32"] {
        for file in ["config.json", "saved_config.json"] {
            let mut config = std::fs::read(golden(name).join(file)).expect(file);
            for bit in 0..config.len() * 8 {
                config[bit / 8] ^= 1 << (bit % 8);
                if let Err(error) = ModelConfig::from_json(Path::new(file), &config) {
                    message(&error);
                }
                config[bit / 8] ^= 1 << (bit % 8);
            }
        }
    }
}

/// Replaces a range of `bytes`, chosen by `random`, by text that is likely to break a parser.
fn splice(bytes: &mut Vec<u8>, random: u64) {
    const PIECES: [&[u8]; 12] = [
        b"",
        b"0",
        b"-1",
        b"18446744073709551615",
        b"1e308",
        b"null",
        b"{}",
        b"[]",
        b"\"",
        b"\\u0000",
        b"\xff\xfe",
        b"9223372036854775808",
    ];
    let at = (random >> 8) as usize % bytes.len();
    let len = ((random >> 40) as usize % 24).min(bytes.len() - at);
    bytes.splice(at..at + len, PIECES[random as usize % PIECES.len()].iter().copied());
}

#[test]
fn spliced_files_do_not_panic() {
    let (config, weights) = small_model();
    let mut random = 0x9e37_79b9_7f4a_7c15u64;
    for _ in 0..5_000 {
        let (mut config, mut weights) = (config.clone(), weights[..4000].to_vec());
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        splice(&mut config, random);
        splice(&mut weights, random);
        survive(&config, &weights);
    }
}
