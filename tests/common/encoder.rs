//! A small encoder, and a head over it.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use trail_probe::predictor::{Features, Layer, Output, Pooling};
use trail_probe::{Predictor, Storage};
use trail_runtime::text::Tokenizer;
use trail_cli::Embedder;

const DEMO: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/assets/demo");

/// Writes a DistilBERT of two tokens and two elements to `folder`.
pub fn write_encoder(folder: &str) {
    let seed = concat!(env!("CARGO_MANIFEST_DIR"), "/fuzz/seeds/encoder/distilbert");
    let seed = fs::read(seed).expect("a seed");
    fs::create_dir_all(folder).expect("a folder");
    let names = ["config.json", "tokenizer.json", "model.safetensors"];
    for (name, bytes) in names.iter().zip(seed.splitn(3, |&byte| byte == 0)) {
        fs::write(Path::new(folder).join(name), bytes).expect("written");
    }
}

/// Makes the second word of the encoder in `folder` one whose embedding is not finite.
pub fn overflow(folder: &str) {
    let file = Path::new(folder).join("model.safetensors");
    let mut bytes = fs::read(&file).expect("weights");
    let data = 8 + u64::from_le_bytes(bytes[..8].try_into().expect("8 bytes")) as usize;
    // The embeddings of two words, then those of two positions, of two elements each.
    bytes[data + 8..data + 32].as_chunks_mut::<4>().0.fill(3e38_f32.to_le_bytes());
    fs::write(file, bytes).expect("written");
}

/// Writes a head to `file` that predicts 20 tokens from any embedding of the encoder in `folder`.
pub fn write_head(folder: &str, file: &str) {
    let tokenizer = Arc::new(Tokenizer::load(Path::new(DEMO), 1024).expect("a tokenizer"));
    let embedder = Embedder::open(Path::new(folder), tokenizer, Pooling::Mean).expect("an encoder");
    let encoder = embedder.fingerprint().to_owned();
    let features = Features::Encoder { width: embedder.width(), encoder, pooling: Pooling::Mean };
    let layer = Layer::new(&[0.0; 2], &[20.0]);
    let head = Predictor::new(features, Output::Tokens, vec![layer]);
    fs::write(file, head.to_bytes(Storage::F32)).expect("written");
}
