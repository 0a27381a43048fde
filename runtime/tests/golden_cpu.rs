//! The CPU backend against transformers, for every supported variant and dtype: the prompt as a
//! prefill, each further token as a decode step on the cache.

#[path = "support/golden.rs"]
mod support;

use std::path::Path;
use std::sync::Arc;

use support::{Golden, check};
use trail_runtime::batch::{BLOCK_TOKENS, Batch};
use trail_runtime::cpu::{CpuBackend, CpuOptions, Isa};
use trail_runtime::model::Model;

const CONTEXT: usize = 64;

fn backend(model: Model, isa: Isa) -> Result<CpuBackend, String> {
    let options = CpuOptions {
        threads: 2,
        isa,
        max_rows: CONTEXT,
        max_segments: 1,
        num_blocks: CONTEXT / BLOCK_TOKENS,
        max_context: CONTEXT,
    };
    CpuBackend::new(Arc::new(model), options)
}

#[test]
fn cpu_backend_agrees_with_transformers() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    // Out of order on purpose: the block table is what says where a token lies.
    let blocks = [2, 0, 3, 1];
    let all = Golden::all(&folder);
    assert!(!all.is_empty());
    for isa in [Isa::Auto, Isa::Portable] {
        for golden in &all {
            let model = Model::load(&golden.folder).expect("a model");
            let made = backend(model, isa);
            if golden.name() == "mixed" {
                // The one thing the loader takes and this backend does not.
                let error = made.err().expect("refused");
                assert!(error.contains("in one dtype"), "{error}");
                continue;
            }
            let mut backend = made.unwrap_or_else(|e| panic!("{}: {e}", golden.name()));
            let mut fed = 0;
            let error = check(golden, |tokens| {
                let mut batch = Batch::default();
                batch.push(0, fed as u32, &tokens[fed..], &blocks, true);
                fed = tokens.len();
                backend.forward(&batch, None).to_vec()
            });
            println!("{isa} {:22} log probabilities within {error:.1e}", golden.name());
        }
    }
}
