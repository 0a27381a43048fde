//! Models of the golden runs as GGUF has them, and the logits of a backend.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use trail_runtime::backend::{BLOCK_TOKENS, Batch};
use trail_runtime::cpu::{Compute, CpuForward, CpuOptions, Isa};
use trail_runtime::model::{Dtype, Model};

use trail_test_support::golden::Golden;

/// A golden run and its model.
pub(crate) fn load(name: &str) -> (Golden, Model) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
    let golden = Golden::load(&folder);
    let model = Model::load(&folder).expect(name);
    (golden, model)
}

/// Logits of the CPU backend after the last of `tokens`: `[vocab]`.
pub(crate) fn cpu_logits(model: &Arc<Model>, tokens: &[u32]) -> Vec<f32> {
    let num_blocks = tokens.len().div_ceil(BLOCK_TOKENS);
    let options = CpuOptions {
        threads: 2,
        pin: false,
        isa: Isa::Auto,
        compute: Compute::Exact,
        repack: false,
        max_rows: tokens.len(),
        max_segments: 1,
        kv_dtype: Dtype::F32,
        num_blocks,
        max_context: num_blocks * BLOCK_TOKENS,
    };
    let mut forward = CpuForward::new(model.clone(), options).expect("a backend");
    let mut batch = Batch::default();
    batch.push(0, 0, tokens, &(0..num_blocks as u32).collect::<Vec<_>>(), true);
    forward.forward(&batch, &[]).to_vec()
}

/// A folder of this process below the system's one for temporary files, removed with this value.
pub(crate) struct Folder(pub(crate) PathBuf);

impl Folder {
    pub(crate) fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("trail-gguf-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a folder");
        Folder(path)
    }

    /// Writes `bytes` to the file `name`; returns its path.
    pub(crate) fn write(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.0.join(name);
        std::fs::write(&path, bytes).expect("a file");
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
